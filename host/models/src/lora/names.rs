//! Tensors' names in files of LoRAs: the layer, the part of its change, and the network that it is
//! for.

/// The part of a layer's change that a tensor is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Piece {
    Down,
    Up,
    UpBias,
    Alpha,
    Weight,
    Bias,
}

/// The network that a layer is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    /// The transformer, or the first of two experts.
    First,
    /// The second of two experts, that for low noise.
    Second,
    /// A text encoder.
    Text,
}

/// The names that trainers and converters give to the two factors. An adapter's own name may follow
/// (peft), then `weight` or `bias`.
const FACTORS: [(&str, Piece); 10] = [
    (".lora_A", Piece::Down),
    (".lora_B", Piece::Up),
    (".lora_down", Piece::Down),
    (".lora_up", Piece::Up),
    (".lora.down", Piece::Down),
    (".lora.up", Piece::Up),
    ("_lora.down", Piece::Down),
    ("_lora.up", Piece::Up),
    (".lora_linear_layer.down", Piece::Down),
    (".lora_linear_layer.up", Piece::Up),
];

/// The ends of the other tensors' names.
const ENDS: [(&str, Piece); 3] = [(".alpha", Piece::Alpha), (".diff", Piece::Weight), (".diff_b", Piece::Bias)];

/// Parts of names that show another kind of change, and its name.
const REFUSED: [(&str, &str); 13] = [
    (".dora_scale", "DoRA (dora_scale)"),
    (".lora_magnitude_vector", "DoRA (lora_magnitude_vector)"),
    (".hada_w1_", "LoHa (hada_w1)"),
    (".lokr_w1", "LoKr (lokr_w1)"),
    (".lokr_w2", "LoKr (lokr_w2)"),
    (".lora_mid.", "a Tucker decomposition (lora_mid)"),
    (".oft_blocks", "OFT (oft_blocks)"),
    (".oft_diag", "OFT (oft_diag)"),
    (".boft_", "BOFT"),
    (".on_input", "IA3 (on_input)"),
    (".set_weight", "weights in place of the model's (set_weight)"),
    (".reshape_weight", "weights of another shape than the model's (reshape_weight)"),
    ("processor.qkv_lora", "XLabs' processors (qkv_lora)"),
];

/// The beginnings of names of a text encoder's layers.
const TEXT: [&str; 7] = ["lora_te", "text_encoder", "text_encoders.", "text_model.", "te1_", "te2_", "conditioner."];

/// Beginnings that may stand before a network's own names, one in another. No network has layers
/// of these names.
const WRAPPERS: [(&str, Owner); 18] = [
    ("base_model.", Owner::First),
    ("model.", Owner::First),
    ("module.", Owner::First),
    ("_orig_mod.", Owner::First),
    ("pipe.", Owner::First),
    ("net.", Owner::First),
    ("diffusion_model.", Owner::First),
    ("transformer.", Owner::First),
    ("unet.", Owner::First),
    ("dit.", Owner::First),
    ("transformer_2.", Owner::Second),
    ("dit2.", Owner::Second),
    ("lora_unet__", Owner::First),
    ("lora_unet_", Owner::First),
    ("lora_transformer_2_", Owner::Second),
    ("lora_transformer_", Owner::First),
    ("lycoris_transformer_2_", Owner::Second),
    ("lycoris_", Owner::First),
];

/// The kind of change that is not supported, if a name shows one.
pub(super) fn refused(name: &str) -> Option<&'static str> {
    REFUSED.iter().find(|(part, _)| name.contains(part)).map(|(_, kind)| *kind)
}

/// A tensor's layer, and the part of its change.
pub(super) fn split(name: &str) -> Option<(&str, Piece)> {
    if let Some(found) = factor(name) {
        return Some(found);
    }
    let (layer, piece) = ENDS.iter().find_map(|(end, piece)| Some((name.strip_suffix(end)?, *piece)))?;
    // Some alphas are called by their factor.
    let layer = factor(layer).filter(|_| piece == Piece::Alpha).map_or(layer, |(layer, _)| layer);
    Some((layer, piece))
}

fn factor(name: &str) -> Option<(&str, Piece)> {
    FACTORS.iter().find_map(|(mark, piece)| {
        let (layer, rest) = name.rsplit_once(mark)?;
        let rest = match rest {
            "" => "weight",
            rest => rest.strip_prefix('.')?,
        };
        // An adapter's name has no dot (peft).
        let kind = rest.split_once('.').map_or(rest, |(_, kind)| kind);
        match (kind, piece) {
            ("weight", piece) => Some((layer, *piece)),
            ("bias", Piece::Up) => Some((layer, Piece::UpBias)),
            _ => None,
        }
    })
}

/// The network that a name belongs to, and the name within it.
pub(super) fn owner(name: &str) -> (Owner, &str) {
    let (mut owner, mut rest) = (Owner::First, name);
    while !TEXT.iter().any(|start| rest.starts_with(start)) {
        let Some((own, after)) = WRAPPERS.iter().find_map(|(start, own)| Some((own, rest.strip_prefix(start)?))) else {
            // Names without dots may end as they began.
            return (owner, if rest.contains('.') { rest } else { rest.trim_end_matches('_') });
        };
        if *own == Owner::Second {
            owner = Owner::Second;
        }
        rest = after;
    }
    (Owner::Text, rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_split_into_layer_and_part() {
        let cases = [
            (
                "lora_unet_double_blocks_0_img_attn_qkv.lora_down.weight",
                "lora_unet_double_blocks_0_img_attn_qkv",
                Piece::Down,
            ),
            ("transformer.x.to_q.lora_B.weight", "transformer.x.to_q", Piece::Up),
            ("transformer.x.to_q.lora_B.bias", "transformer.x.to_q", Piece::UpBias),
            ("x.to_q.lora_A", "x.to_q", Piece::Down),
            ("x.to_q.lora_A.default.weight", "x.to_q", Piece::Down),
            ("x.to_q.lora_A.my_style-v2.weight", "x.to_q", Piece::Down),
            ("x.to_q.lora_B.my_style.bias", "x.to_q", Piece::UpBias),
            ("x.to_q_lora.up.weight", "x.to_q", Piece::Up),
            ("x.to_q.lora.down.weight", "x.to_q", Piece::Down),
            ("x.to_q.lora_linear_layer.up.weight", "x.to_q", Piece::Up),
            ("blocks.0.ffn.0.diff_b", "blocks.0.ffn.0", Piece::Bias),
            ("blocks.0.ffn.0.diff", "blocks.0.ffn.0", Piece::Weight),
            ("a.alpha", "a", Piece::Alpha),
            ("a.lora_A.weight.alpha", "a", Piece::Alpha),
        ];
        for (name, layer, piece) in cases {
            assert_eq!(split(name), Some((layer, piece)), "{name}");
        }
        for name in ["double_blocks.0.img_attn.qkv.weight", "x.lora_A.bias", "x.lora_A.a.b.weight", "x.lora_Aweight"] {
            assert_eq!(split(name), None, "{name}");
        }
        assert_eq!(refused("a.dora_scale"), Some("DoRA (dora_scale)"));
        assert_eq!(refused("a.lora_A.weight"), None);
    }

    #[test]
    fn what_stands_before_a_layers_name_tells_the_network() {
        let cases = [
            ("transformer.blocks.0.attn1.to_q", Owner::First, "blocks.0.attn1.to_q"),
            ("transformer_blocks.0.attn.to_q", Owner::First, "transformer_blocks.0.attn.to_q"),
            ("base_model.model.transformer_blocks.0.attn.to_q", Owner::First, "transformer_blocks.0.attn.to_q"),
            ("base_model.model.model.diffusion_model.img_in", Owner::First, "img_in"),
            ("module.base_model.model.transformer_2.blocks.0.ffn.0", Owner::Second, "blocks.0.ffn.0"),
            ("pipe.dit2.blocks.0.ffn.0", Owner::Second, "blocks.0.ffn.0"),
            ("lora_unet__blocks_0_ffn_0", Owner::First, "blocks_0_ffn_0"),
            ("lora_unet_transformer_blocks_0_attn_to_q_", Owner::First, "transformer_blocks_0_attn_to_q"),
            ("lora_transformer_2_blocks_0_ffn_0", Owner::Second, "blocks_0_ffn_0"),
            ("text_embedding.0", Owner::First, "text_embedding.0"),
            ("text_encoder_2.x", Owner::Text, "text_encoder_2.x"),
            (
                "base_model.model.text_model.encoder.layers.0.mlp.fc1",
                Owner::Text,
                "text_model.encoder.layers.0.mlp.fc1",
            ),
            ("lora_te1_text_model_encoder", Owner::Text, "lora_te1_text_model_encoder"),
        ];
        for (name, of, rest) in cases {
            assert_eq!(owner(name), (of, rest), "{name}");
        }
    }
}
