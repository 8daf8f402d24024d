#!/usr/bin/env python3
"""Reads the files of the trackers with Python's own parsers and prints their contents.

    report_peer.py csv FILE    a line for each row: epoch update name value.hex()
    report_peer.py json FILE   a line for each JSON object, with sorted keys
    report_peer.py html FILE   a line for each metric: name, records in the page, records that the
                               chart claims, values drawn as a line, circles, gaps; then "text NAME"
                               for each text. Fails if an <svg> is not well-formed XML, a tag is not
                               closed, or anything outside of the file is referenced.
"""

import csv
import html.parser
import json
import re
import sys
import xml.etree.ElementTree as ElementTree

VOID_TAGS = {"meta"}
RECORDS_ID = "linkboy-records"


def read_csv(path):
    with open(path, newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            float(row["time"])
            print(int(row["epoch"]), int(row["update"]), row["name"], float(row["value"]).hex())


def reject_constant(name):
    raise ValueError(f"{name} is not JSON")


def read_json(path):
    with open(path, encoding="utf-8") as file:
        for line in file:
            print(json.dumps(json.loads(line, parse_constant=reject_constant), sort_keys=True))


class Page(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.open_tags, self.tags, self.records, self.text = [], set(), "", []

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        for name, value in attrs:
            assert name not in ("src", "href", "srcset") and not name.startswith("on"), (tag, name)
            assert name != "style", (tag, value)
        if tag == "script":
            assert dict(attrs) == {"type": "application/json", "id": RECORDS_ID}, attrs
        if tag not in VOID_TAGS:
            self.open_tags.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag):
        assert self.open_tags.pop() == tag, (tag, self.open_tags)

    def handle_data(self, data):
        if self.open_tags and self.open_tags[-1] == "script":
            self.records += data
        elif self.open_tags and self.open_tags[-1] == "style":
            assert "url(" not in data and "@import" not in data
        else:
            self.text.append(data)


def count_drawn(series):
    """Returns the numbers of values in the line, of circles, and of gaps."""
    line = series.find("path[@class='line']").get("d")
    return (len(re.findall("[ML]", line)), len(series.findall("circle")),
            len(series.findall("path[@class='gap']")))


def read_html(path):
    with open(path, encoding="utf-8") as file:
        text = file.read()
    page = Page()
    page.feed(text)
    page.close()
    assert not page.open_tags, page.open_tags
    allowed = {"html", "head", "meta", "title", "style", "body", "main", "header", "h1", "ul", "li",
               "section", "figure", "h2", "h3", "svg", "g", "path", "text", "circle", "rect", "i",
               "span", "b", "p", "div", "table", "thead", "tbody", "tr", "th", "td", "article",
               "pre", "footer", "script"}
    assert page.tags <= allowed, page.tags - allowed

    drawn = {}
    for svg in re.findall("<svg.*?</svg>", text, re.DOTALL):
        for series in ElementTree.fromstring(svg).findall("g[@class]"):
            if series.get("class").startswith("series"):
                drawn[series.get("data-metric")] = (int(series.get("data-points")),
                                                    *count_drawn(series))
    records = json.loads(page.records, parse_constant=reject_constant)
    for metric in records["metrics"]:
        assert metric["name"] in page.text, metric["name"]
        print(metric["name"], len(metric["value"]), *drawn.pop(metric["name"]))
    assert not drawn, drawn
    for record in records["texts"]:
        assert record["text"] in "".join(page.text), record
        print("text", record["name"])


if __name__ == "__main__":
    {"csv": read_csv, "json": read_json, "html": read_html}[sys.argv[1]](sys.argv[2])
