"""The Python side of tensorboard_tracker_test.cpp: prints the values that TensorBoard reads, as JSON.

Usage: tensorboard_peer.py LOGDIR RUN; RUN is a folder in LOGDIR. Prints {"missing": REASON} if the tensorboard
package is missing.
"""

import json
import logging
import os
import sys

try:
    import tensorboard
    from tensorboard import context
    from tensorboard.backend.event_processing import (
        data_provider, event_accumulator, plugin_event_multiplexer)
    from tensorboard.plugins import base_plugin
    from tensorboard.plugins.hparams import api_pb2, backend_context, list_session_groups, metadata
except ImportError as error:
    print(json.dumps({"missing": str(error)}))
    sys.exit(0)


def value_of(value):
    return getattr(value, value.WhichOneof("kind"))


def read_events(folder):
    events = event_accumulator.EventAccumulator(folder, size_guidance={
        event_accumulator.SCALARS: 0, event_accumulator.HISTOGRAMS: 0,
        event_accumulator.TENSORS: 0})
    events.Reload()
    tags = events.Tags()
    result = {"scalars": {}, "histograms": {}, "texts": {}, "hparams": {}, "status": None}
    for tag in tags["scalars"]:
        # JSON does not have NaN.
        result["scalars"][tag] = [[e.step, str(e.value), e.wall_time] for e in events.Scalars(tag)]
    for tag in tags["histograms"]:
        result["histograms"][tag] = [
            {"step": e.step, "min": e.histogram_value.min, "max": e.histogram_value.max,
             "num": e.histogram_value.num, "sum": e.histogram_value.sum,
             "sum_squares": e.histogram_value.sum_squares,
             "limits": list(e.histogram_value.bucket_limit),
             "counts": list(e.histogram_value.bucket)} for e in events.Histograms(tag)]
    for tag, content in events.summary_metadata.items():
        plugin = content.plugin_data
        if plugin.plugin_name == "text":
            result["texts"][tag] = [[e.step, e.tensor_proto.string_val[0].decode()]
                                    for e in events.Tensors(tag)]
        elif tag == metadata.SESSION_START_INFO_TAG:
            start = metadata.parse_session_start_info_plugin_data(plugin.content)
            result["hparams"] = {key: value_of(value) for key, value in start.hparams.items()}
        elif tag == metadata.SESSION_END_INFO_TAG:
            end = metadata.parse_session_end_info_plugin_data(plugin.content)
            result["status"] = api_pb2.Status.Name(end.status)
    return result


def read_hparams_tab(folder):
    """Returns the rows of the HPARAMS tab: the configuration of each run and its newest metrics."""
    runs = plugin_event_multiplexer.EventMultiplexer()
    runs.AddRunsFromDirectory(folder)
    runs.Reload()
    provider = data_provider.MultiplexerDataProvider(runs, folder)
    backend = backend_context.Context(base_plugin.TBContext(data_provider=provider, logdir=folder))
    request_context = context.RequestContext()
    experiment = backend.experiment_from_metadata(
        request_context, "", True, backend.hparams_metadata(request_context, ""),
        backend.hparams_from_data_provider(request_context, "", 1000))
    request = api_pb2.ListSessionGroupsRequest(
        start_index=0, slice_size=100, allowed_statuses=api_pb2.Status.values(),
        col_params=[{"metric": info.name} for info in experiment.metric_infos])
    groups = list_session_groups.Handler(request_context, backend, "", request).run()
    return [{"hparams": {key: value_of(value) for key, value in group.hparams.items()},
             "metrics": {value.name.tag: value.value for value in group.metric_values},
             "status": [api_pb2.Status.Name(session.status) for session in group.sessions]}
            for group in groups.session_groups]


logging.disable(logging.WARNING)  # it logs the files that it skips
logdir, run = sys.argv[1:]
print(json.dumps({"version": tensorboard.__version__,
                  "events": read_events(os.path.join(logdir, run)),
                  "hparams_tab": read_hparams_tab(logdir)}))
