"""Models by name: what a token weighs on the wire and in a KV cache, and what weights take in memory."""

from __future__ import annotations

from difflib import get_close_matches

from msgspec import Struct

from epctl.model.refusal import RefusalError

_HUB = "config.json at huggingface.co/"


class Mla(Struct, frozen=True, tag="mla"):
    """Latent attention: a token keeps one latent and one rotary key a layer (DeepSeek-V2, arXiv 2405.04434, section 2.1)."""

    num_heads: int
    q_rank: int
    kv_rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int

    @property
    def cached_values(self) -> int:
        """Values that a token keeps in one layer."""
        return self.kv_rank + self.rope_dim

    def parameters(self, hidden: int) -> int:
        """Of one layer: down and up projections of query and key-value, and the output."""
        query = hidden * self.q_rank + self.q_rank * self.num_heads * (self.nope_dim + self.rope_dim)
        key_value = hidden * self.cached_values + self.kv_rank * self.num_heads * (self.nope_dim + self.value_dim)
        return query + key_value + self.num_heads * self.value_dim * hidden


class Gqa(Struct, frozen=True, tag="gqa"):
    """Grouped-query attention: a key and a value a layer for each of the KV heads."""

    num_heads: int
    num_kv_heads: int
    head_dim: int

    @property
    def cached_values(self) -> int:
        """Values that a token keeps in one layer."""
        return 2 * self.num_kv_heads * self.head_dim

    def parameters(self, hidden: int) -> int:
        """Of one layer: query, key, value and output projections."""
        return hidden * self.head_dim * (2 * self.num_heads + 2 * self.num_kv_heads)


class Model(Struct, frozen=True):
    """A model as far as traffic and weights need it. Expert FFNs have three matrices (gate, up, down)."""

    name: str
    hidden: int
    num_layers: int
    num_dense_layers: int
    """Leading layers without experts."""
    num_experts: int
    num_topk: int
    num_shared: int
    expert_dim: int
    dense_dim: int
    vocabulary: int
    attention: Mla | Gqa
    weight_bytes: int
    """Of one parameter, as the model is served."""
    source: str

    @property
    def kv_bytes(self) -> int:
        """KV cache of one token in all layers, BF16."""
        return self.num_layers * self.attention.cached_values * 2

    @property
    def routed_parameters(self) -> int:
        """Of all routed experts."""
        return (self.num_layers - self.num_dense_layers) * self.num_experts * 3 * self.hidden * self.expert_dim

    @property
    def other_parameters(self) -> int:
        """Attention, dense and shared FFNs, routers, embeddings and head; norms and biases are left out (under 0.01 %)."""
        sparse = self.num_layers - self.num_dense_layers
        ffn = 3 * self.hidden * (self.num_dense_layers * self.dense_dim + sparse * self.num_shared * self.expert_dim)
        router = sparse * self.num_experts * self.hidden
        return (
            self.num_layers * self.attention.parameters(self.hidden) + ffn + router + 2 * self.vocabulary * self.hidden
        )


_V3_ATTENTION = Mla(num_heads=128, q_rank=1536, kv_rank=512, nope_dim=128, rope_dim=64, value_dim=128)
MODELS: dict[str, Model] = {
    model.name: model
    for model in (
        Model(
            "deepseek-v3",
            7168,
            61,
            3,
            256,
            8,
            1,
            2048,
            18432,
            129280,
            _V3_ATTENTION,
            1,
            f"{_HUB}deepseek-ai/DeepSeek-V3",
        ),
        Model(
            "kimi-k2",
            7168,
            61,
            1,
            384,
            8,
            1,
            2048,
            18432,
            163840,
            Mla(num_heads=64, q_rank=1536, kv_rank=512, nope_dim=128, rope_dim=64, value_dim=128),
            1,
            f"{_HUB}moonshotai/Kimi-K2-Instruct",
        ),
        Model(
            "qwen3-30b-a3b", 2048, 48, 0, 128, 8, 0, 768, 6144, 151936, Gqa(32, 4, 128), 2, f"{_HUB}Qwen/Qwen3-30B-A3B"
        ),
        Model(
            "qwen3-235b-a22b",
            4096,
            94,
            0,
            128,
            8,
            0,
            1536,
            12288,
            151936,
            Gqa(64, 4, 128),
            2,
            f"{_HUB}Qwen/Qwen3-235B-A22B",
        ),
        Model("glm-4.5", 5120, 92, 3, 160, 8, 1, 1536, 12288, 151552, Gqa(96, 8, 128), 2, f"{_HUB}zai-org/GLM-4.5"),
    )
}
DEFAULT_MODEL = "deepseek-v3"


def model_named(name: str) -> Model:
    """The preset of that name. Raises RefusalError unknown_model."""
    found = MODELS.get(name.lower().removesuffix("-like"))
    if found is None:
        near = get_close_matches(name.lower(), list(MODELS), n=1, cutoff=0.3)
        what, todo = f"there is no model {name!r}", f"give --model {near[0] if near else DEFAULT_MODEL}"
        why = f"presets are {', '.join(MODELS)}; others are given by --experts, --topk, --hidden and --kv-bytes"
        raise RefusalError("unknown_model", what, why, todo)
    return found
