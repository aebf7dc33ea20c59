"""The Kubernetes provider: `kubectl exec -i POD -- torch-remote serve --stdio`.

`k8s://pod` uses a pod that runs already; `k8s://?image=IMAGE` makes one and deletes it at the end.
The standard input and output of kubectl are the connection, so no port, token or TLS is needed.

Options, behind `?` in the URL or in the configuration file:

    context, namespace, container   as for kubectl
    image       of a new pod; it has torch-remote (deploy/Dockerfile)
    spec        a file with the pod to make, JSON or YAML, in place of image, num_gpus and product;
                what the pod runs is the file's matter, so only `lifetime` ends it by itself
    num_gpus    of a new pod, 1 by default
    product     of a new pod: the node's label nvidia.com/gpu.product
    pods        how many pods to make: each is a server with its devices
    command, device, idle, lease, lifetime, wait: docs/providers.md
"""

from __future__ import annotations

import json
import shlex
import shutil
import time
from pathlib import Path
from typing import Any

from .. import _running
from .._errors import ConnectionError
from . import Endpoint, Spec, common, grammar

OPTIONS = (
    *common.SERVE_OPTIONS,
    *("container", "context", "image", "namespace", "num_gpus", "pods", "product", "spec"),
)
_PRODUCT = "nvidia.com/gpu.product"
_LABEL = "torch-remote/machine"  # of every pod of this provider

# What kubectl or the cluster says, and what to do about it.
ADVICE = (
    (
        r"was refused|Unable to connect|no such host|i/o timeout|did not answer",
        "check that the cluster runs and that `kubectl get pods` reaches it",
    ),
    (
        r"Unauthorized|must be logged in|credentials|executable .* not found|no configuration",
        "log in to the cluster, so that `kubectl get pods` works, and check `kubectl config view`",
    ),
    (r"exceeded quota", "ask for a higher quota, or use another namespace with namespace=NAME"),
    (r"forbidden", "ask who runs the cluster to let you create, get, delete and exec pods"),
    (
        r"Insufficient|Unschedulable|nodes are available|didn't match",
        "no node has what the pod needs free: wait longer with wait=1h, ask for fewer GPUs with "
        "num_gpus=N, or for another product=NAME",
    ),
    (
        r"ImagePull|ErrImage|InvalidImageName|pull access denied",
        "check image=NAME and that the cluster may pull it; deploy/Dockerfile makes an image",
    ),
    (
        r"Evicted|Preempt|NodeLost|NodeShutdown|Terminated|DeadlineExceeded|is gone|Succeeded",
        "the pod was taken away; connect again and go on from your last checkpoint",
    ),
    (r"OOMKilled", "the pod had too little memory: give it more with spec=FILE"),
    (r"pods? .*not found", "check the pod's name with `kubectl get pods`"),
    (
        r"torch-remote.*not found|not found.*torch-remote|no such file or directory",
        "torch-remote is not on the PATH in the container: use an image that has it "
        "(deploy/Dockerfile), or name it with command=/path/to/torch-remote",
    ),
)
_tool = common.Tool(ADVICE, "kubectl failed", patience_s=15)


def launch(spec: Spec) -> Endpoint:
    common.check_options(spec, *OPTIONS)
    grammar.check_options(spec, grammar.WORD, "context")
    grammar.check_options(spec, grammar.LABEL, "namespace", "container")
    pod = spec.host.strip("/")
    if pod:
        grammar.check(spec, "the pod", pod, grammar.POD)
    common.need_program(spec, "kubectl", "Kubernetes' command kubectl")
    if pod:
        if "image" in spec.options or "spec" in spec.options:
            raise ValueError(f"{spec.url}: name a pod, or an image or a spec to make one, not both")
        _check_running(spec, pod)
        return _endpoint(spec, [pod], is_ours=False)
    if "image" not in spec.options and "spec" not in spec.options:
        raise ValueError(
            f"{spec.url} names neither a pod nor an image: k8s://POD or k8s://?image=NAME"
        )
    of_image = [each for each in ("image", "num_gpus", "product") if each in spec.options]
    if "spec" in spec.options and of_image:
        raise ValueError(f"{spec.url}: with spec= the file says it: leave {of_image[0]}= out")
    return _make(spec)


def _make(spec: Spec) -> Endpoint:
    tell = common.Progress(spec)
    patience_s = common.seconds(spec, "wait", common.WAIT)
    common.serve_command(spec)  # a wrong option is noticed before a pod is made
    _check_product(spec)
    count = common.number(spec, "pods", 1) or 1
    names = [f"{spec.label}-{each}" if count > 1 else spec.label for each in range(count)]
    pods = [pod_of(spec, name) for name in names]
    made = _endpoint(spec, names, is_ours=True)
    _running.note(spec, made)
    with common.ending_on_failure(spec, lambda: stop(made)):
        for pod in pods:
            _kubectl(spec, "create", "-f", "-", text=json.dumps(pod))
        tell("queued", made.ends)
        for name in names:
            _wait(spec, name, tell, patience_s)
        tell("connecting")
    return made


def pod_of(spec: Spec, name: str) -> dict[str, Any]:
    """The pod to make, with a name that is known before it is made."""
    pod = _pod_of_file(spec) if "spec" in spec.options else _pod_of_image(spec)
    metadata, body = pod.setdefault("metadata", {}), pod["spec"]
    metadata["name"] = name
    metadata["labels"] = {**metadata.get("labels", {}), _LABEL: spec.label}
    lifetime_s = common.seconds(spec, "lifetime", common.LIFETIME)
    body["activeDeadlineSeconds"] = min(body.get("activeDeadlineSeconds", lifetime_s), lifetime_s)
    return pod


def _pod_of_file(spec: Spec) -> dict[str, Any]:
    path = Path(spec.options["spec"]).expanduser()
    if not path.is_file():
        raise ValueError(f"{spec.url}: there is no file {path}")
    words = ("create", "--dry-run=client", "-o", "json", "-f", str(path))
    pod: dict[str, Any] = json.loads(_kubectl(spec, *words))
    if pod.get("kind") != "Pod":
        raise ValueError(f"{spec.url}: {path} must have one Pod, not a {pod.get('kind')}")
    return pod


def _pod_of_image(spec: Spec) -> dict[str, Any]:
    """After `kubernetes_pod.json`."""
    pod = json.loads((Path(__file__).parent / "kubernetes_pod.json").read_text())
    body, container = pod["spec"], pod["spec"]["containers"][0]
    container["image"] = spec.options["image"]
    container["command"][-1] = common.idle_watch(spec)
    container["resources"]["limits"] = {"nvidia.com/gpu": str(common.number(spec, "num_gpus", 1))}
    if "product" in spec.options:
        body["nodeSelector"] = {_PRODUCT: spec.options["product"]}
    return dict(pod)


def _endpoint(spec: Spec, pods: list[str], is_ours: bool) -> Endpoint:
    command = shlex.join(common.serve_command(spec, "--stdio"))
    serve = f"{common.mark(spec)} exec {command}"
    place = [f"--container={spec.options['container']}"] if "container" in spec.options else []
    made = [
        Endpoint(
            url=spec.url,
            command=common.logged(
                ("kubectl", *_global(spec), "exec", "-i", pod, *place, "--", "sh", "-c", serve),
                spec.label,
            ),
            handle=json.dumps([is_ours, _global(spec), pods, spec.label]),
        )
        for pod in pods
    ]
    ends = "stop(), or the end of this process, ends its server; the pod goes on"
    if is_ours:
        ends = common.who_ends(spec, "pod", has_idle_limit="spec" not in spec.options)
    return common.machine_of(made, ends, stays=is_ours)


def _wait(spec: Spec, name: str, tell: common.Progress, patience_s: int) -> None:
    end = time.monotonic() + patience_s
    while True:
        pod = json.loads(_kubectl(spec, "get", "pod", name, "-o", "json"))
        phase, why, is_hopeless = describe(pod)
        if phase == "Running":
            return
        if is_hopeless or time.monotonic() > end:
            waited = "" if is_hopeless else f" after {patience_s} s"
            raise ConnectionError(_tool.advise(spec.url, f"the pod is {phase}{waited}: {why}"))
        tell("image" if "Creating" in why or "ull" in why else "queued", why)
        time.sleep(1)


def describe(pod: dict[str, Any]) -> tuple[str, str, bool]:
    """The phase of a pod, why it is in it, and whether waiting cannot help."""
    status = pod.get("status", {})
    phase = status.get("phase", "Pending")
    words = [status.get("reason", ""), status.get("message", "")]
    is_hopeless = phase in ("Failed", "Succeeded")
    for each in status.get("conditions", []):
        if each.get("type") == "PodScheduled" and each.get("status") != "True":
            words += [each.get("reason", ""), each.get("message", "")]
    for container in status.get("containerStatuses", []):
        for state in container.get("state", {}).values():
            words += [state.get("reason", ""), state.get("message", "")]
            is_hopeless |= any(
                bad in state.get("reason", "") for bad in ("ImagePull", "ErrImage", "InvalidImage")
            )
    return phase, " ".join(word for word in words if word), is_hopeless


def _check_running(spec: Spec, pod: str) -> None:
    phase, why, _ = describe(json.loads(_kubectl(spec, "get", "pod", pod, "-o", "json")))
    if phase != "Running":
        raise ConnectionError(_tool.advise(spec.url, f"the pod {pod} is {phase} {why}"))


def _check_product(spec: Spec) -> None:
    """ValueError for a GPU that no node has, as far as we may look at the nodes."""
    if "product" not in spec.options:
        return
    done = common.run_program(
        ["kubectl", *_global(spec), "get", "nodes", "-o", "json"], _tool.patience_s
    )
    if done.returncode != 0:  # few users may list nodes
        return
    labels = [each["metadata"].get("labels", {}) for each in json.loads(done.stdout)["items"]]
    there = sorted({each[_PRODUCT] for each in labels if _PRODUCT in each})
    if there and spec.options["product"] not in there:
        raise ValueError(f"Invalid GPU type '{spec.options['product']}'. Valid types: {there}")


def _global(spec: Spec) -> list[str]:
    names = ("context", "namespace")
    return [f"--{each}={spec.options[each]}" for each in names if each in spec.options]


def _kubectl(spec: Spec, *words: str, text: str = "") -> str:
    return _tool.ask(spec.url, "kubectl", *_global(spec), *words, text=text)


def explain(endpoint: Endpoint, error: str) -> str:
    """What kubectl has printed, and what has become of the pods."""
    return _tool.explain(endpoint, json.loads(endpoint.handle)[3], state(endpoint))


def state(endpoint: Endpoint) -> str:
    _, place, pods, _ = json.loads(endpoint.handle)
    for pod in pods:
        done = common.run_program(
            ["kubectl", *place, "get", "pod", pod, "-o", "json", "--ignore-not-found"],
            _tool.patience_s,
        )
        if done.returncode != 0:
            return common.last_words(done.stderr)
        phase, why, _ = describe(json.loads(done.stdout)) if done.stdout else ("gone", "", True)
        if phase != "Running":
            return f"the pod {pod} is {phase}: {why}".removesuffix(": ")
    return "running"


def status(endpoint: Endpoint) -> dict[str, str]:
    _, _, pods, _ = json.loads(endpoint.handle)
    return {"provider": "k8s", "pods": " ".join(pods)}


def logs(endpoint: Endpoint) -> str:
    return _running.read_log(json.loads(endpoint.handle)[3])


def stop(endpoint: Endpoint) -> None:
    is_ours, place, pods, label = json.loads(endpoint.handle)
    if is_ours:
        delete = ("delete", "pod", *pods, "--ignore-not-found", "--wait=false")
        _tool.ask(f"the pods {' '.join(pods)} may go on", "kubectl", *place, *delete)
    _running.remove_log(label)


def machines() -> list[Endpoint]:
    """The pods of the current context that this provider has made, also from other machines."""
    if shutil.which("kubectl") is None:
        return []
    try:
        told = _tool.ask("k8s://", "kubectl", "get", "pods", "-l", _LABEL, "-o", "json")
    except ConnectionError as error:
        if "localhost:8080" in str(error):  # kubectl asks there if it has no configuration
            return []
        raise
    pods: dict[str, list[str]] = {}  # by the label of their machine
    for each in json.loads(told)["items"]:
        metadata = each["metadata"]
        if grammar.POD.accepts(metadata["name"]):
            pods.setdefault(metadata["labels"][_LABEL], []).append(metadata["name"])
    return [
        Endpoint(f"k8s://{label}", handle=json.dumps([True, [], names, label]), stays=True)
        for label, names in pods.items()
    ]
