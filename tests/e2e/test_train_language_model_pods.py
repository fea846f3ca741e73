"""The preset for a language model on pods, with a model and data on a volume; a deleted pod costs
time only.
"""

import json

from test_group_resources import shared_volume as shared_volume  # a fixture

from tests.helpers.ddp_pods import ONE_THREAD, completes_without, logs_by_node
from tests.helpers.group_pods import uninstall
from tests.helpers.kube import Namespace, start_pod, wait_until

# A tokenizer and a model of 100,000 parameters in the layout of Hugging Face, and conversations
# that repeat.
MAKE = """
import json, pathlib
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
root = pathlib.Path("/volume")
for name in ("data", "model", "out"):
    (root / name).mkdir()
rows = [{"prompt": f"say {n % 7} ", "completion": f"the number {n % 7}"} for n in range(2000)]
(root / "data/train.jsonl").write_text("".join(json.dumps(row) + "\\n" for row in rows))
(root / "data/val.jsonl").write_text("".join(json.dumps(row) + "\\n" for row in rows[:40]))
tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=["<unk>", "<s>", "</s>"])
tokenizer.train_from_iterator([row["prompt"] + row["completion"] for row in rows], trainer)
fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>")
fast.save_pretrained(root / "model")
shape = dict(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4)
config = LlamaConfig(vocab_size=len(fast), max_position_embeddings=512, **shape)
LlamaForCausalLM(config).save_pretrained(root / "model")
print("made")
"""
CLAIM = {"name": "shared", "persistentVolumeClaim": {"claimName": "shared-volume"}}


def make_model_and_data(space: Namespace, node: str):
    container = {"volumeMounts": [{"name": "shared", "mountPath": "/volume"}]}
    container["env"] = [{"name": "HOME", "value": "/tmp"}]
    start_pod(space, "make", ["python3", "-c", MAKE], container, nodeName=node, volumes=[CLAIM])
    space.kubectl("wait", "pod/make", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=180s")


def test_a_model_is_tuned_on_two_nodes_and_resumes(namespace, shared_volume):
    make_model_and_data(namespace, shared_volume)
    mounts = [
        {"name": "shared", "mountPath": path, "subPath": name}
        for path, name in (("/models", "model"), ("/data", "data"), ("/out", "out"))
    ]
    own = {"spec": {"volumes": [CLAIM], "containers": [{"volumeMounts": mounts}]}}
    node = "nodeSelector.kubernetes\\.io/hostname"
    settings = [
        "--set",
        f"program.preset=train-framework,placement.onePodPerNode=any,{node}={shared_volume}",
    ]
    namespace.install(
        "run", "ddp-run", *ONE_THREAD, *settings, "--set-json", f"podTemplate={json.dumps(own)}"
    )
    wait_until(
        lambda: "[STEP] node=0 rank=0 " in logs_by_node(namespace).get(0, ""), "it trains", 240
    )
    log = completes_without(namespace, 1)[0]
    assert (
        "world=2 " in log and "[DONE] node=0 rank=0 status=finished " in log and "val_loss=" in log
    )
    uninstall(namespace, "run")
