//! Sizes of a model from its Hugging Face `config.json`, for the arithmetic of [`plan`](crate::plan).

use serde::Deserialize;

/// Sizes from a configuration. Parameters are counted from the shapes of attention, feed-forward layers,
/// experts and embeddings. Norms, biases and routers, below 1 %, are not counted, nor are extra prediction
/// heads and vision towers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ModelSizes {
    /// All parameters, in units of 10⁹.
    pub parameters: f64,
    /// Parameters used for each token, in units of 10⁹.
    pub active_parameters: f64,
    /// Bits per parameter as the weights are stored.
    pub weight_bits: f64,
    /// Query heads × elements per head; for latent attention, the mean over scores and values.
    pub query_elements: u64,
    /// Longest context in tokens; `u64::MAX` if not given.
    pub context: u64,
}

/// The fields that determine sizes, of any architecture.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Shapes {
    text_config: Option<Box<Shapes>>,
    model_type: String,
    hidden_size: f64,
    intermediate_size: Option<f64>,
    intermediate_size_mlp: Option<f64>,
    num_hidden_layers: f64,
    num_attention_heads: f64,
    num_key_value_heads: Option<f64>,
    num_kv_heads: Option<f64>,
    multi_query: Option<bool>,
    new_decoder_architecture: Option<bool>,
    head_dim: Option<f64>,
    vocab_size: Option<f64>,
    max_position_embeddings: Option<f64>,
    tie_word_embeddings: Option<bool>,
    num_local_experts: Option<f64>,
    num_experts: Option<f64>,
    n_routed_experts: Option<f64>,
    n_shared_experts: Option<f64>,
    num_experts_per_tok: Option<f64>,
    moe_intermediate_size: Option<f64>,
    shared_expert_intermediate_size: Option<f64>,
    first_k_dense_replace: Option<f64>,
    interleave_moe_layer_step: Option<f64>,
    q_lora_rank: Option<f64>,
    kv_lora_rank: Option<f64>,
    qk_nope_head_dim: Option<f64>,
    qk_rope_head_dim: Option<f64>,
    v_head_dim: Option<f64>,
    quantization_config: Option<Quantisation>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Quantisation {
    quant_method: String,
    bits: Option<f64>,
}

impl ModelSizes {
    /// The sizes given by the text of a `config.json`.
    ///
    /// # Errors
    /// If the text is not valid.
    pub fn from_hf(config: &str) -> Result<Self, serde_json::Error> {
        let mut whole: Shapes = serde_json::from_str(config)?;
        let quantisation = whole.quantization_config.take();
        let text = whole.text_config.take().map_or(whole, |text| *text);
        let weight_bits = match quantisation.as_ref().map(|q| (q.quant_method.as_str(), q.bits)) {
            None => 16.0,
            Some((_, Some(bits))) => bits,
            Some(("fp8", _)) => 8.0,
            Some(("mxfp4", _)) => 4.25, // 4 bits, and 8 for each 32 values
            Some(_) => 16.0,
        };
        let (parameters, active_parameters) = text.parameters();
        let query = text.num_attention_heads * text.query_elements();
        Ok(Self {
            parameters: parameters / 1e9,
            active_parameters: active_parameters / 1e9,
            weight_bits,
            query_elements: query as u64,
            context: text.max_position_embeddings.map_or(u64::MAX, |tokens| tokens as u64),
        })
    }
}

impl Shapes {
    fn head_dim(&self) -> f64 {
        let of_gemma_3 = (self.model_type == "gemma3_text").then_some(256.0);
        self.head_dim.or(of_gemma_3).unwrap_or(self.hidden_size / self.num_attention_heads.max(1.0))
    }

    fn latent(&self) -> Option<(f64, f64, f64, f64)> {
        Some((self.kv_lora_rank?, self.qk_nope_head_dim?, self.qk_rope_head_dim?, self.v_head_dim?))
    }

    fn query_elements(&self) -> f64 {
        self.latent().map_or(self.head_dim(), |(_, nope, rope, value)| (nope + rope + value) / 2.0)
    }

    fn attention(&self) -> f64 {
        let (hidden, heads) = (self.hidden_size, self.num_attention_heads);
        let Some((latent, nope, rope, value)) = self.latent() else {
            let one_head = self.multi_query == Some(true) && self.new_decoder_architecture != Some(true);
            let listed = self.num_key_value_heads.or(self.num_kv_heads).unwrap_or(heads);
            let kv_heads = if one_head { 1.0 } else { listed };
            return 2.0 * hidden * (heads + kv_heads) * self.head_dim();
        };
        let query = heads * (nope + rope);
        let queries = self.q_lora_rank.map_or(hidden * query, |rank| rank * (hidden + query));
        queries + hidden * (latent + rope) + heads * (latent * (nope + value) + value * hidden)
    }

    /// All parameters, and those used for one token.
    fn parameters(&self) -> (f64, f64) {
        let (layers, hidden) = (self.num_hidden_layers, self.hidden_size);
        let vocabulary = if self.model_type == "gemma3_text" { 262_208.0 } else { 0.0 };
        let tied = self.tie_word_embeddings.unwrap_or(self.model_type.starts_with("gemma"));
        let embeddings = self.vocab_size.unwrap_or(vocabulary) * hidden * if tied { 1.0 } else { 2.0 };
        // Falcon and GPT-NeoX have no gate: two matrices of four times the width.
        let two_matrices = ["falcon", "gpt_neox", "phi"].contains(&self.model_type.as_str());
        let matrices = if two_matrices { 2.0 } else { 3.0 };
        let wide = |elements: f64| matrices * hidden * elements;
        let width = self.intermediate_size.unwrap_or(4.0 * hidden);
        let dense = wide(self.intermediate_size_mlp.unwrap_or(width));
        let experts = self.num_local_experts.or(self.num_experts).or(self.n_routed_experts).unwrap_or(0.0);
        let (moe_layers, expert, shared) = if experts > 0.0 {
            let expert = self.moe_intermediate_size.unwrap_or(width);
            let llama_4 = if self.interleave_moe_layer_step.is_some() { width } else { 0.0 };
            let shared = self
                .shared_expert_intermediate_size
                .unwrap_or(self.n_shared_experts.map_or(llama_4, |n| n * expert));
            let dense_first = self.first_k_dense_replace.unwrap_or(0.0);
            let moe_layers = (layers - dense_first) / self.interleave_moe_layer_step.unwrap_or(1.0).max(1.0);
            (moe_layers, wide(expert), wide(shared))
        } else {
            (0.0, 0.0, 0.0)
        };
        let with = |experts: f64| {
            embeddings
                + layers * self.attention()
                + (layers - moe_layers) * dense
                + moe_layers * (experts * expert + shared)
        };
        (with(experts), with(self.num_experts_per_tok.unwrap_or(0.0).min(experts)))
    }
}
