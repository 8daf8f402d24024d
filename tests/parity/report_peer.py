#!/usr/bin/env python3
"""Reads the files of the trackers with Python's own parsers and prints their contents.

    report_peer.py csv FILE    a line for each row: epoch update name value.hex()
    report_peer.py json FILE   a line for each JSON object, with sorted keys
    report_peer.py html FILE   what the page's script draws: a line for each chart with its title and the labels of
                               both axes; for each metric its name, records, values and parts of the line, circles and
                               gaps; for each row of a table or list, each note and each text, "| " and its content.
                               Fails if a tag is not closed, an <svg> is not well-formed XML, a coordinate is not a
                               number, or anything outside of the file is referenced.
"""

import csv
import html.parser
import json
import re
import sys
import xml.etree.ElementTree as ElementTree

VOID_TAGS = {"meta"}


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
    """The elements of a page as (tag, attributes, text)."""

    def __init__(self, text):
        super().__init__()
        self.open, self.elements = [], []
        self.feed(text)
        self.close()
        assert not self.open, self.open

    def handle_starttag(self, tag, attrs):
        for name, value in attrs:
            assert name not in ("src", "href", "srcset", "style") and not name.startswith("on"), (tag, name)
            assert name != "d" or re.fullmatch(r"[-MLHlhvz0-9.,]*", value), value
        if tag in ("td", "th"):
            self.handle_data(" ")
        self.elements.append([tag, dict(attrs), ""])
        if tag not in VOID_TAGS:
            self.open.append(self.elements[-1])

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag):
        assert self.open.pop()[0] == tag, (tag, self.open)

    def handle_data(self, data):
        for element in self.open:
            element[2] += data

    def texts(self, tag, **attributes):
        return [text for name, attrs, text in self.elements if name == tag and attributes.items() <= attrs.items()]


def drawn_page(text):
    """Runs the script of the page. Returns the title and what is in <main> afterwards."""
    import quickjs  # only this function needs the package

    page = Page(text)
    (records,) = page.texts("script", type="application/jsonl")
    assert not re.search(r"https?:|url\(|@import", text.replace(records, ""))
    (script,) = [text for tag, attrs, text in page.elements if tag == "script" and not attrs]
    assert "<" not in records, records
    context = quickjs.Context()
    context.set("records_text", records)
    context.eval("var main = {}, document = {getElementById: id => ({textContent: records_text}),"
                 " querySelector: selector => main}")
    return json.loads(context.eval(script + "JSON.stringify([document.title, main.innerHTML])"))


def print_series(series, counts):
    name, line = series.get("data-metric"), series.find("path[@class='line']").get("d")
    print("", name, counts[name], "records:", len(re.findall("[ML]", line)), "values in", line.count("M"), "parts,",
          len(series.findall("circle")), "circles,", len(series.findall("path[@class='gap']")), "gaps",
          *["and an average"] * (series.find("path[@class='average']") is not None))


def read_html(path):
    with open(path, encoding="utf-8") as file:
        title, content = drawn_page(file.read())
    page = Page(content)
    counts = {}
    for row in re.findall("<tr><th>.*?</tr>", content, re.DOTALL):
        cells = Page(row)
        if len(cells.texts("td")) > 1:  # not that of a configuration
            counts[cells.texts("th")[0]] = cells.texts("td")[-1]
    assert page.texts("h1") == [title]
    for svg in re.findall("<svg.*?</svg>", content, re.DOTALL):
        root = ElementTree.fromstring(svg)
        labels = [text.text for text in root.findall("text")]
        print(root.get("aria-label") + ":", *labels)
        for series in root.findall("g"):
            print_series(series, counts)
    for tag in ("li", "p", "tr", "pre"):
        for text in page.texts(tag):
            print("|", " ".join(text.split()))


if __name__ == "__main__":
    {"csv": read_csv, "json": read_json, "html": read_html}[sys.argv[1]](sys.argv[2])
