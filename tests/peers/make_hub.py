"""What TRL's tests load from the hub, made on this machine: `make_hub.py CHECKOUT FOLDER`, and FOLDER is an HF_HOME.

The checkout's own generators build the tiny models and data sets; what they would take from the hub, a tokenizer and a
generation config, is made here, and what they would upload is saved where transformers and datasets look offline. The
models that need more (an image processor, a configuration of the hub) are left out: their tests fail in both runs.
"""

from __future__ import annotations

import argparse
import functools
import re
import runpy
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import datasets
import tokenizers
import transformers
from tokenizers import decoders, models, pre_tokenizers, trainers

COMMIT = "0" * 40
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MODELS = ("for_causal_lm", "for_sequence_classification")
DATA = {"zen": 0.1, "toolcall": 0.1, "harmony": 0.1}  # set → the share of its test split


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    make_hub(arguments.checkout.resolve(), arguments.folder.resolve())


def make_hub(checkout: Path, folder: Path) -> None:
    """Fill ``folder``, unless it has been filled; it appears whole or not at all."""
    if folder.exists():
        return
    unfinished = folder.with_suffix(".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    sys.path.insert(0, str(checkout))
    make_data(checkout, unfinished / "datasets")
    for script in find_generators(checkout):
        make_model(checkout, script, unfinished / "hub")
    unfinished.rename(folder)


def make_data(checkout: Path, cache: Path) -> None:
    """Save what the generators upload where ``load_dataset`` finds it offline."""
    datasets.DatasetDict.push_to_hub = functools.partialmethod(save_data, cache)  # type: ignore[assignment]
    for name, share in DATA.items():
        generate = runpy.run_path(str(checkout / f"scripts/generate_{name}_dataset.py"))["main"]
        generate(share, True, f"trl-internal-testing/{name}")


def save_data(data: datasets.DatasetDict, cache: Path, name: str, config_name: str) -> None:
    folder = cache / name.replace("/", "___") / config_name / "0.0.0" / COMMIT
    folder.mkdir(parents=True)
    infos = datasets.DatasetInfo(
        features=data["train"].features,
        builder_name="parquet",
        dataset_name=name.split("/")[1],
        config_name=config_name,
        version=datasets.Version("0.0.0"),
        splits=datasets.SplitDict(),
    )
    for split, rows in data.items():
        infos.splits.add(datasets.SplitInfo(split, num_examples=len(rows), dataset_name=infos.dataset_name))
        with datasets.arrow_writer.ArrowWriter(
            features=rows.features, path=str(folder / f"{infos.dataset_name}-{split}.arrow")
        ) as writer:
            for row in rows:
                writer.write(row)
            writer.finalize()
    infos.write_to_directory(str(folder))


def find_generators(checkout: Path) -> Iterator[Path]:
    for kind in MODELS:
        yield from sorted((checkout / "scripts/generate_tiny_models" / kind).glob("[a-z]*.py"))


def make_model(checkout: Path, script: Path, hub: Path) -> None:
    """Run one generator; a model that cannot be made here is named and left out."""
    family = script.stem.split("_for_")[0]
    serve_the_hub(family, functools.partial(make_tokenizer, checkout, find_template(checkout, script.stem)), hub)
    module = ".".join(script.relative_to(checkout).with_suffix("").parts)
    try:
        runpy.run_module(module)
    except Exception as error:  # noqa: BLE001 - whatever keeps a model from being made
        print(f"without {script.stem}: {error!r}"[:200])


def serve_the_hub(family: str, tokenizer: Callable[[], Any], hub: Path) -> None:
    """Answer what the generators ask of the hub, and save what they upload."""
    common = __import__("scripts.generate_tiny_models._common", fromlist=["_common"])
    for check in ("check_dtype_pattern", "check_transformers_version", "print_config_diff"):
        setattr(common, check, lambda *_: None)
    common.push_to_hub = functools.partial(save_model, hub)
    transformers.AutoTokenizer.from_pretrained = lambda *_, **__: tokenizer()
    transformers.GenerationConfig.from_pretrained = lambda *_, **__: transformers.GenerationConfig()
    transformers.AutoConfig.from_pretrained = lambda _, **options: make_config(family, len(tokenizer()), **options)


def make_config(family: str, words: int, **options: Any) -> Any:
    """Its defaults, with ids of special tokens that the small vocabulary holds."""
    return transformers.AutoConfig.for_model(
        family, vocab_size=words, bos_token_id=1, eos_token_id=2, pad_token_id=0, **options
    )


def save_model(
    hub: Path, model: Any, tokenizer: Any, generation_config: Any, prefix: str = "", suffix: str = ""
) -> None:
    """In the layout of the cache of huggingface_hub."""
    name = "-".join(filter(None, [prefix, type(model).__name__, suffix]))
    repository = hub / f"models--trl-internal-testing--{name}"
    for part in filter(None, (model, tokenizer, generation_config)):
        part.save_pretrained(repository / "snapshots" / COMMIT)
    (repository / "refs").mkdir()
    (repository / "refs/main").write_text(COMMIT)


def find_template(checkout: Path, script: str) -> Path:
    """The checkout's chat template with the generator's model and version in its name, else Qwen 2.5's."""
    wanted = re.sub(r"_(for_causal_lm|for_sequence_classification|moe|small)|small_", "", script).replace("_", "")
    templates = {path.stem.replace("_", ""): path for path in (checkout / "trl/chat_templates").glob("*.jinja")}
    known = {"qwen225": "qwen25", "glm4": "glm4moe"}
    return templates.get(known.get(wanted, wanted), templates["qwen25"])


@functools.cache
def make_tokenizer(checkout: Path, template: Path) -> Any:
    """Byte pairs of the checkout's own texts, so that any text can be encoded."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=2000, special_tokens=list(SPECIAL), initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train([str(checkout / "README.md"), str(checkout / "scripts/generate_zen_dataset.py")], trainer)
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=SPECIAL[2],
        pad_token=SPECIAL[0],
        additional_special_tokens=[SPECIAL[1]],
        chat_template=template.read_text(),
        model_max_length=32768,
    )


if __name__ == "__main__":
    main()
