"""The recount on its own, against hand computation: no metric of the package takes part."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode
from transformers import (
    BertConfig,
    BertForMultipleChoice,
    BertModel,
    CLIPConfig,
    CLIPModel,
    CLIPVisionConfig,
    LlamaConfig,
    LlamaForCausalLM,
    LlavaConfig,
    LlavaForConditionalGeneration,
    T5Config,
    T5ForConditionalGeneration,
    ViTConfig,
    ViTForImageClassification,
    Wav2Vec2Config,
    Wav2Vec2ForCTC,
    WhisperConfig,
    WhisperForConditionalGeneration,
)

from areal_callbacks.verify import Recount, Totals

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:transformers", "ignore::FutureWarning:transformers")

SIZES: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 64,
}
IDS = torch.tensor([[5, 6, 7, 0], [5, 6, 0, 0]])
MASK = (IDS != 0).long()


def llama() -> LlamaForCausalLM:
    return LlamaForCausalLM(LlamaConfig(num_key_value_heads=2, **SIZES)).train()


def trained(model: nn.Module, *args: Any, **batch: Any) -> Totals:
    with Recount(model) as recount:
        output = model(*args, **batch)
        loss = output if isinstance(output, Tensor) else getattr(output, "loss", None)
        (output[0].sum() if loss is None else loss.sum()).backward()
    assert not recount.totals.unread
    return recount.totals


def test_what_cannot_be_read_is_noted_and_does_no_harm() -> None:
    model = llama()
    with Recount(model) as recount, recount.given({"input_ids": IDS, "labels": torch.full((2, 4), -100).to("meta")}):
        model(input_ids=IDS).logits.sum().backward()
    (problem,) = recount.totals.unread
    assert "meta" in problem
    assert recount.totals.tokens == 0


def test_a_language_model() -> None:
    totals = trained(llama(), input_ids=IDS, attention_mask=MASK)
    assert (totals.tokens, totals.padding, totals.lengths, totals.calls) == (5, 3, [3, 2], 1)


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing_counts_once(reentrant: bool) -> None:
    model = llama()
    model.enable_input_require_grads()
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    assert trained(model, input_ids=IDS, attention_mask=MASK).lengths == [3, 2]


def test_what_does_not_train_does_not_count() -> None:
    model = llama()
    with Recount(model) as recount:
        with torch.no_grad():
            model(input_ids=IDS, attention_mask=MASK)
        model.eval()(input_ids=IDS, attention_mask=MASK)
        model.generate(IDS[:, :2], max_new_tokens=2, pad_token_id=0)
    assert recount.totals == Totals()


@pytest.mark.parametrize("inside", [True, False])
def test_embeddings_that_are_given_count_once(inside: bool) -> None:
    model = llama()
    with Recount(model) as recount:
        embedded = model.get_input_embeddings()(IDS) if inside else torch.randn(2, 4, 16)
        model(inputs_embeds=embedded, attention_mask=MASK).logits.sum().backward()
    assert recount.totals.lengths == [3, 2]


def test_a_model_that_is_named_twice_counts_once() -> None:
    model = llama()
    with Recount(model, model) as recount:
        recount.add(model, nn.Sequential(model))
        model(IDS, MASK).logits.sum().backward()
    assert recount.totals.lengths == [3, 2]


def test_two_calls_are_two() -> None:
    model = llama()
    with Recount(model) as recount:
        for _ in range(2):
            model(IDS, MASK).logits.sum().backward()
    assert recount.totals.lengths == [3, 2, 3, 2]


def test_multiple_choice() -> None:
    choices = torch.tensor([[[5, 6, 7, 0], [5, 6, 0, 0], [5, 6, 7, 8]]])
    batch = {"input_ids": choices, "attention_mask": (choices != 0).long(), "labels": torch.tensor([0])}
    assert trained(BertForMultipleChoice(BertConfig(**SIZES)).train(), **batch).lengths == [3, 2, 4]


def test_an_encoder_and_its_decoder() -> None:
    sizes = {"vocab_size": 64, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2}
    model = T5ForConditionalGeneration(T5Config(decoder_start_token_id=0, **sizes)).train()
    labels = torch.tensor([[5, 6, 1], [5, 1, -100]])
    assert trained(model, input_ids=IDS, attention_mask=MASK, labels=labels).lengths == [3, 2, 3, 2]
    square = torch.tensor([[5, 6, 9, 1], [1, -100, -100, -100]])  # as wide as the encoder's ids
    assert trained(model, input_ids=IDS, attention_mask=MASK, labels=square).lengths == [3, 2, 4, 1]


def test_mel_frames_are_no_tokens() -> None:
    sides = {f"{side}_{name}": value for side in ("encoder", "decoder") for name, value in SIDE.items()}
    ends = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    limits = {"max_source_positions": 10, "max_target_positions": 16, "num_mel_bins": 8}
    model = WhisperForConditionalGeneration(WhisperConfig(vocab_size=64, d_model=16, **sides, **ends, **limits)).train()
    totals = trained(model, input_features=torch.randn(2, 8, 20), labels=torch.tensor([[5, 6, 1], [5, 1, -100]]))
    assert (totals.lengths, totals.input_frames) == ([3, 2], 40)


SIDE = {"layers": 1, "attention_heads": 2, "ffn_dim": 16}


def test_samples_are_no_tokens() -> None:
    layers = {"conv_dim": (8,), "conv_stride": (2,), "conv_kernel": (3,), "num_conv_pos_embeddings": 4}
    sizes = {name: value for name, value in SIZES.items() if name != "max_position_embeddings"}
    config = Wav2Vec2Config(
        num_conv_pos_embedding_groups=2, pad_token_id=0, apply_spec_augment=False, **layers, **sizes
    )
    mask = torch.tensor([[1] * 40, [1] * 30 + [0] * 10])
    totals = trained(
        Wav2Vec2ForCTC(config).train(), torch.randn(2, 40), attention_mask=mask, labels=torch.tensor([[5, 6], [7, 8]])
    )
    assert (totals.tokens, totals.input_frames) == (0, 70)


def test_patches_are_no_tokens() -> None:
    sizes = {name: SIZES[name] for name in SIZES if name not in ("vocab_size", "max_position_embeddings")}
    model = ViTForImageClassification(ViTConfig(image_size=8, patch_size=4, num_channels=1, **sizes)).train()
    totals = trained(model, pixel_values=torch.randn(2, 1, 8, 8), labels=torch.tensor([0, 1]))
    assert (totals.tokens, totals.calls) == (0, 0)


VISION = {"image_size": 8, "patch_size": 4, "projection_dim": 8}


def test_pairs_of_images_and_texts() -> None:
    body = {name: value for name, value in SIZES.items() if name not in ("vocab_size", "max_position_embeddings")}
    ends = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    config = CLIPConfig(text_config={**SIZES, **ends}, vision_config={**body, **VISION}, projection_dim=8)
    pixels = torch.randn(2, 3, 8, 8)
    totals = trained(
        CLIPModel(config).train(), input_ids=IDS, attention_mask=MASK, pixel_values=pixels, return_loss=True
    )
    assert totals.lengths == [3, 2]


def test_the_places_of_images_in_a_text_are_positions_of_the_language_model() -> None:
    body = {name: value for name, value in SIZES.items() if name not in ("vocab_size", "max_position_embeddings")}
    text = LlamaConfig(num_key_value_heads=2, **SIZES)
    layers = {"vision_feature_layer": -1, "vision_feature_select_strategy": "default", "image_token_index": 63}
    config = LlavaConfig(vision_config=CLIPVisionConfig(**body, **VISION), text_config=text, **layers)
    ids = torch.tensor([[5, 63, 63, 63, 63, 6, 0], [5, 63, 63, 63, 63, 6, 7]])
    model = LlavaForConditionalGeneration(config).train()
    totals = trained(model, input_ids=ids, attention_mask=(ids > 0).long(), pixel_values=torch.randn(2, 3, 8, 8))
    assert totals.lengths == [6, 7]


class Own(nn.Module):
    """A model of nobody's: its tokens and its positions are embedded, and it is given a record."""

    def __init__(self) -> None:
        super().__init__()
        self.positions, self.tokens = nn.Embedding(8, 4), nn.Embedding(64, 4, padding_idx=0)

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        ids = batch["ids"]
        return self.tokens(ids) + self.positions(torch.arange(ids.shape[-1]))


def test_an_own_module() -> None:
    assert trained(Own(), {"ids": IDS, "mask": MASK}).lengths == [3, 2]


def test_compiled_code_runs_as_it_stands() -> None:
    assert trained(torch.compile(Own(), backend="eager"), {"ids": IDS, "mask": MASK}).lengths == [3, 2]


def test_two_own_modules_in_one() -> None:
    pair = nn.ModuleList([Own(), Own()])
    with Recount(pair) as recount:
        sum(model({"ids": IDS, "mask": MASK}).sum() for model in pair).backward()
    assert recount.totals.lengths == [3, 2, 3, 2]


class GradientCache(nn.Module):
    """Embeds without gradients; the forward that trains runs in a hook of backward."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = BertModel(BertConfig(**SIZES)).train()

    def forward(self, **batch: Tensor) -> Tensor:
        with torch.no_grad():
            embedded = self.encoder(**batch).pooler_output
        loss = embedded.requires_grad_().pow(2).sum()

        def train(_: Tensor) -> None:
            with torch.enable_grad():
                self.encoder(**batch).pooler_output.sum().backward()

        loss.register_hook(train)
        return loss


def test_a_gradient_cache_trains_once() -> None:
    assert trained(GradientCache(), input_ids=IDS, attention_mask=MASK).lengths == [3, 2]


def test_a_given_batch_knows_what_no_call_does() -> None:
    model = llama()
    with Recount(model) as recount, recount.given({"input_ids": IDS, "attention_mask": MASK}):
        model(input_ids=IDS).logits.sum().backward()
    assert recount.totals.lengths == [3, 2]


@pytest.mark.parametrize("checkpointed", [True, False])
def test_operators_of_forward_and_backward_without_recomputation(checkpointed: bool) -> None:
    model = llama()
    model.set_attn_implementation("eager")  # FlopCounterMode lacks a formula of the kernel for CPUs
    with FlopCounterMode(display=False) as counter:
        model(input_ids=IDS).logits.sum().backward()
    if checkpointed:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    with Recount(model, flops=True) as recount:
        model(input_ids=IDS).logits.sum().backward()
        with torch.no_grad():
            model(input_ids=IDS)
    assert recount.totals.flops == counter.get_total_flops()


def test_a_training_is_the_same_with_it_and_leaves_nothing_behind() -> None:
    torch.manual_seed(0)
    model = llama()
    model(input_ids=IDS, labels=IDS).loss.backward()
    before = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
    model.zero_grad()
    trained(model, input_ids=IDS, labels=IDS)
    after = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    assert len(before) == len(after)
    assert all(torch.equal(*pair) for pair in zip(before, after))
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in model.modules())
