"""The Python side of mlflow_tracker_test.cpp: prints the values that MLflow's client reads, as JSON.

Usage: mlflow_peer.py FOLDER EXPERIMENT. Prints {"missing": REASON} if there is no mlflow package.
"""

import json
import os
import sys

# Without this variable, MLflow 3.17 refuses file stores.
os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
try:
    import mlflow
    from mlflow.tracking import MlflowClient
except ImportError as error:
    print(json.dumps({"missing": str(error)}))
    sys.exit(0)

client = MlflowClient(tracking_uri="file:" + sys.argv[1])
experiment = client.get_experiment_by_name(sys.argv[2])
runs = client.search_runs([experiment.experiment_id], order_by=["attributes.start_time ASC"])
print(json.dumps({
    "version": mlflow.__version__,
    "experiments": sorted(e.name for e in client.search_experiments()),
    "runs": [{
        "id": run.info.run_id, "name": run.info.run_name, "status": run.info.status,
        "start": run.info.start_time, "end": run.info.end_time, "params": run.data.params,
        "tags": run.data.tags,
        "metrics": {name: [[m.step, str(m.value), m.timestamp]
                           for m in client.get_metric_history(run.info.run_id, name)]
                    for name in run.data.metrics},
        "artifacts": sorted(a.path for a in client.list_artifacts(run.info.run_id)),
    } for run in runs]}))
