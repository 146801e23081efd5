"""What people type: the commands, the packages that they come from, and the files that they read.

``{inputs}`` is the folder of models and data, ``{out}`` what the command writes, ``{scripts}`` ours, ``{bin}``
the environment's programs.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from stacks.settings import AXOLOTL, LIGHTNING_CLI, LLAMAFACTORY_FILES, OUMI


@dataclass(frozen=True)
class Stack:
    """One command.

    Attributes:
        name: of the row.
        package: whose version is shown.
        environment: its own packages are installed in.
        words: the command.
        model: the folder of the model.
        files: name → content that is written into the working directory first, as YAML.
        variables: of the environment.
        processes: that train.
        plugin_words: with which the command loads our plugin, so that it is measured without ``areal-callbacks run``.
        plugin_files: likewise, whose keys come to those of the file of the same name.
    """

    name: str
    package: str
    environment: str
    words: tuple[str, ...]
    model: str = "moe"
    files: dict[str, Any] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)
    processes: int = 1
    plugin_words: tuple[str, ...] = ()
    plugin_files: dict[str, Any] = field(default_factory=dict)

    def with_plugin(self) -> Stack:
        """The command with our plugin in it; as it is if it has none."""
        files = {name: {**self.files.get(name, {}), **more} for name, more in self.plugin_files.items()}
        return replace(self, words=(*self.words, *self.plugin_words), files={**self.files, **files})


_PLAIN = (
    "--per_device_train_batch_size 4 --max_steps 3 --learning_rate 0.01 --report_to none --logging_steps 1 --use_cpu"
)
_PLAIN += " --seed 3 --bf16 False --gradient_checkpointing False --dtype float32 --output_dir {out}"


def _trl(command: str, data: str, more: str = "") -> tuple[str, ...]:
    model = "--model_name_or_path {inputs}/{model} --dataset_name {inputs}/" + data
    return ("{bin}/trl", command, *f"{model} {_PLAIN} {more}".split())


_GRPO = _trl("grpo", "prompt", "--num_generations 2 --max_completion_length 8 --reward_funcs think_format_reward")


_SWIFT = (
    "{bin}/swift sft --model {inputs}/moe --model_type qwen3_moe --template chatml --dataset {inputs}/chat/train.jsonl "
    "--tuner_type full --output_dir {out} --add_version false --per_device_train_batch_size 4 --max_steps 3 "
    "--learning_rate 0.01 --logging_steps 1 --report_to none --use_cpu true --torch_dtype float32 --bf16 false "
    "--fp16 false --seed 3 --gradient_checkpointing false --split_dataset_ratio 0 --attn_impl eager "
    "--dataset_num_proc 1 --dataloader_num_workers 0 --load_from_cache_file false"
)

_SWIFT_GRPO = _SWIFT.replace("swift sft", "swift rlhf --rlhf_type grpo") + (
    " --reward_funcs format --num_generations 2 --max_completion_length 8 --use_vllm false"
)


_LITGPT = (
    "{bin}/litgpt finetune_full {inputs}/litgpt --out_dir {out} --precision 32-true --train.max_steps 3 "
    "--train.epochs 1 --train.global_batch_size 1 --train.micro_batch_size 1 --train.lr_warmup_steps 1 --data JSON "
    "--data.json_path {inputs}/alpaca/train.jsonl --data.val_split_fraction 0.25 --data.num_workers 0"
)

_CPU = {"ACCELERATE_USE_CPU": "true"}


def _own_loop(library: str, package: str) -> Stack:
    words = ("{bin}/python", "{scripts}/own_loop.py", library, "{inputs}/moe", "{out}")
    return Stack(f"python, {library}", package, library, words, plugin_words=("--track",))


_TORCHRUN = ("{bin}/torchrun", "--nproc-per-node", "2", "--master-port", "{port}")

STACKS = (
    Stack("trl sft", "trl", "hf", _trl("sft", "chat")),
    Stack("trl dpo", "trl", "hf", _trl("dpo", "preference")),
    Stack("trl grpo", "trl", "hf", _GRPO, variables={"TORCHDYNAMO_DISABLE": "1"}),
    Stack("trl grpo, of ms-swift", "trl", "swift", _GRPO, variables={"TORCHDYNAMO_DISABLE": "1"}),
    Stack("trl sft, packed", "trl", "hf", _trl("sft", "chat", "--packing --max_length 64 --attn_implementation eager")),
    Stack("trl sft", "trl", "hf", _trl("sft", "chat", "--num_processes 2"), variables=_CPU, processes=2),
    Stack(
        "llamafactory-cli train",
        "llamafactory",
        "llamafactory",
        ("{bin}/llamafactory-cli", "train", "x.yaml"),
        files=LLAMAFACTORY_FILES,
    ),
    Stack(
        "llamafactory-cli train",
        "llamafactory",
        "llamafactory",
        ("{bin}/llamafactory-cli", "train", "x.yaml"),
        files=LLAMAFACTORY_FILES,
        variables={"FORCE_TORCHRUN": "1", "NPROC_PER_NODE": "2", "MASTER_PORT": "{port}", **_CPU},
        processes=2,
    ),
    Stack("swift sft", "ms-swift", "swift", tuple(_SWIFT.split())),
    Stack(
        "swift sft",
        "ms-swift",
        "swift",
        tuple(_SWIFT.split()),
        variables={"NPROC_PER_NODE": "2", "MASTER_PORT": "{port}", **_CPU},
        processes=2,
    ),
    Stack(
        "swift sft, plugin",
        "ms-swift",
        "swift",
        tuple(_SWIFT.split()),
        plugin_words=("--external_plugins", "{scripts}/areal_plugin.py", "--callbacks", "areal"),
    ),
    Stack("swift rlhf, grpo", "ms-swift", "swift", tuple(_SWIFT_GRPO.split())),
    Stack("axolotl train", "axolotl", "axolotl", ("{bin}/axolotl", "train", "x.yaml"), files={"x.yaml": AXOLOTL}),
    Stack(
        "axolotl train, plugin",
        "axolotl",
        "axolotl",
        ("{bin}/axolotl", "train", "x.yaml"),
        files={"x.yaml": AXOLOTL},
        plugin_files={
            "x.yaml": {
                "plugins": ["areal_callbacks.integrations.axolotl.AReaLMetricsPlugin"],
                "areal_callbacks": {"every": 2, "report": False, "moe_balance": {"extended": True}},
            }
        },
    ),
    Stack(
        "axolotl train, packed",
        "axolotl",
        "axolotl",
        ("{bin}/axolotl", "train", "x.yaml"),
        files={
            "x.yaml": {
                **AXOLOTL,
                "sample_packing": True,
                "pad_to_sequence_len": True,
                "sequence_len": 160,
                "micro_batch_size": 1,
            }
        },
    ),
    Stack("oumi train", "oumi", "oumi", ("{bin}/oumi", "train", "-c", "x.yaml"), files={"x.yaml": OUMI}),
    Stack(
        "python, sentence-transformers",
        "sentence-transformers",
        "hf",
        ("{bin}/python", "{scripts}/sentences.py", "{inputs}/dense", "{out}"),
        "dense",
    ),
    Stack(
        "python, SetFit",
        "setfit",
        "setfit",
        ("{bin}/python", "{scripts}/few_shot.py", "{inputs}/dense", "{out}"),
        "dense",
    ),
    Stack(
        "accelerate launch",
        "accelerate",
        "hf",
        (
            "{bin}/accelerate",
            "launch",
            "--cpu",
            "--num_processes",
            "2",
            "--main_process_port",
            "{port}",
            "{scripts}/accelerate_loop.py",
            "{inputs}/moe",
            "{out}",
        ),
        processes=2,
    ),
    Stack(
        "torchrun, HF Trainer",
        "transformers",
        "hf",
        (*_TORCHRUN, "{scripts}/hf_trainer.py", "{inputs}/moe", "{out}"),
        variables=_CPU,
        processes=2,
    ),
    Stack(
        "LightningCLI",
        "lightning",
        "hf",
        ("{bin}/python", "{scripts}/lightning_cli.py", "fit", "--config", "x.yaml"),
        files={"x.yaml": LIGHTNING_CLI},
        variables={"MODEL": "{inputs}/moe"},
    ),
    Stack("litgpt finetune_full", "litgpt", "litgpt", tuple(_LITGPT.split())),
    Stack("python, Fabric", "lightning", "hf", ("{bin}/python", "{scripts}/fabric_loop.py", "{inputs}/moe", "{out}")),
    _own_loop("torchtune", "torchtune"),
    _own_loop("torchtitan", "torchtitan"),
    _own_loop("olmo-core", "ai2-olmo-core"),
    Stack(
        "OLMo-core's trainer",
        "ai2-olmo-core",
        "olmo-core",
        ("{bin}/python", "{scripts}/olmo_core_trainer.py", "{inputs}/moe", "{out}"),
        plugin_words=("--track",),
    ),
)
