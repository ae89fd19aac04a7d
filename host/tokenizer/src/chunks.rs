//! Chunks: what a text encoder runs at once, with start, end and padding.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::prompt::{Embeddings, Piece, pieces};
use crate::tokenizer::{Family, PADDING, Reading, Tokenizer};

/// The length of published CLIPs.
const CLIP_LENGTH: usize = 77;
/// ComfyUI's least lengths, and diffusers' lengths.
const T5_LEAST: usize = 256;
const SENTENCE_LENGTH: usize = 512;
/// The fewest tokens of a piece that may be parted at a chunk's end.
const LONG_PIECE: usize = 8;

/// A text encoder, as far as its tokens go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Encoder {
    /// CLIP-L: chunks of 77, or of as many as it has positions, padded with the end's id.
    ClipL,
    /// OpenCLIP's bigG: likewise, padded with 0.
    ClipG,
    /// T5 as Flux has it: padded with 0, to 256 at least (ComfyUI) or to 512 (diffusers).
    T5,
    /// UMT5 as WAN has it: padded with 0, to 512.
    Umt5,
}

/// The content of a token's place.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Token {
    /// A row of the encoder's embedding.
    Id(u32),
    /// A vector of an embedding that the prompt names.
    Embedding {
        /// The embedding's name.
        name: Arc<str>,
        /// Which of its vectors, counted from 0.
        vector: usize,
    },
}

/// The tokens that an encoder runs at once.
#[derive(Clone, Debug, PartialEq)]
pub struct Chunk {
    /// The tokens, padding included.
    pub tokens: Vec<Token>,
    /// Their weights.
    pub weights: Vec<f32>,
    /// The number of tokens before the padding, start and end included.
    pub used: usize,
    /// The place of the first end: that of the pooled state. The mask is one up to it, it included.
    pub end: usize,
}

/// A prompt for one encoder.
#[derive(Clone, Debug, PartialEq)]
pub struct Tokens {
    /// At least one. The encoder's states of all of them are joined.
    pub chunks: Vec<Chunk>,
}

impl Tokens {
    /// True if a weight is other than 1, so that the empty prompt's states are needed.
    #[must_use]
    pub fn weighted(&self) -> bool {
        self.chunks.iter().flat_map(|chunk| &chunk.weights).any(|weight| *weight != 1.0)
    }

    /// The longest chunk's length, which the empty prompt is to have.
    #[must_use]
    pub fn longest(&self) -> usize {
        self.chunks.iter().map(|chunk| chunk.tokens.len()).max().unwrap_or(0)
    }
}

impl Chunk {
    /// The ids, or `None` where the chunk has vectors of embeddings.
    #[must_use]
    pub fn ids(&self) -> Option<Vec<u32>> {
        let id = |token: &Token| match token {
            Token::Id(id) => Some(*id),
            Token::Embedding { .. } => None,
        };
        self.tokens.iter().map(id).collect()
    }
}

impl Encoder {
    /// The family of its vocabulary.
    #[must_use]
    pub fn family(self) -> Family {
        match self {
            Self::ClipL | Self::ClipG => Family::Clip,
            Self::T5 => Family::T5,
            Self::Umt5 => Family::Umt5,
        }
    }

    /// A prompt's tokens. `embeddings` is asked for the names that the prompt has; without it,
    /// and for diffusers, `embedding:name` is text. `length` is the encoder's own: CLIP's
    /// positions, of which the long ones have 248, or fewer tokens than the published ones of T5
    /// read.
    ///
    /// # Errors
    /// [`Error::Mismatch`], [`Error::TooLong`], [`Error::TooDeep`].
    pub fn tokens(
        self,
        tokenizer: &Tokenizer,
        prompt: &str,
        reading: Reading,
        embeddings: Option<&dyn Embeddings>,
        length: Option<usize>,
    ) -> Result<Tokens> {
        let pieces = match (self, reading) {
            (Self::ClipG, Reading::Diffusers) => vec![padded_at_marks(tokenizer, prompt)?],
            _ => pieces(tokenizer, prompt, reading, embeddings)?,
        };
        self.chunks(tokenizer, &pieces, reading, length)
    }

    /// The chunks that pieces make. ComfyUI's CLIP begins a new chunk where one is full, and
    /// rather than parting a piece of fewer than eight tokens; its other encoders take all in one.
    /// diffusers cuts off what does not fit.
    ///
    /// # Errors
    /// [`Error::Mismatch`].
    pub fn chunks(
        self,
        tokenizer: &Tokenizer,
        pieces: &[Piece],
        reading: Reading,
        length: Option<usize>,
    ) -> Result<Tokens> {
        let mut filling = Filling::new(self.ends(tokenizer)?, self.length(reading, length));
        for piece in pieces {
            let (mut row, weight) = row(piece);
            if reading == Reading::Diffusers {
                row.truncate(filling.room());
                filling.push(&row, weight);
                continue;
            }
            let long = row.len() >= LONG_PIECE;
            let mut rest = row.as_slice();
            while !rest.is_empty() {
                let room = filling.room();
                if rest.len() <= room {
                    filling.push(rest, weight);
                    break;
                }
                if long {
                    let (fits, after) = rest.split_at(room);
                    filling.push(fits, weight);
                    rest = after;
                }
                filling.finish();
            }
        }
        filling.finish();
        Ok(Tokens { chunks: filling.chunks })
    }

    /// The empty prompt's chunk of this length, against which ComfyUI weighs: a token's state
    /// becomes `empty + weight * (state - empty)`.
    ///
    /// # Errors
    /// [`Error::Mismatch`].
    pub fn empty(self, tokenizer: &Tokenizer, length: usize) -> Result<Chunk> {
        let length = Length { most: None, least: length };
        let mut filling = Filling::new(self.ends(tokenizer)?, length);
        filling.finish();
        filling.chunks.pop().ok_or(Error::Mismatch { wanted: self.family(), found: tokenizer.family() })
    }

    fn ends(self, tokenizer: &Tokenizer) -> Result<Ends> {
        let (wanted, found) = (self.family(), tokenizer.family());
        if wanted != found {
            return Err(Error::Mismatch { wanted, found });
        }
        let (start, end) = tokenizer.ends();
        Ok(Ends { start, end, padding: if self == Self::ClipL { end } else { PADDING } })
    }

    fn length(self, reading: Reading, own: Option<usize>) -> Length {
        // A start, an end and a token between them are the least that a prompt takes.
        let own = own.map(|own| own.max(3));
        let within = |usual: usize| own.map_or(usual, |own| own.min(usual));
        match (self, reading) {
            // Each position is a row that it was trained with.
            (Self::ClipL | Self::ClipG, _) => {
                let length = own.unwrap_or(CLIP_LENGTH);
                Length { most: Some(length), least: length }
            }
            (_, Reading::Diffusers) => Length { most: Some(within(SENTENCE_LENGTH)), least: within(SENTENCE_LENGTH) },
            (Self::T5, _) => Length { most: None, least: within(T5_LEAST) },
            (Self::Umt5, _) => Length { most: None, least: within(SENTENCE_LENGTH) },
        }
    }
}

/// A prompt as the second tokenizer of SDXL's pipeline reads it, whose padding is written `!`: each
/// is padding, and parts the text (huggingface/diffusers#4153).
fn padded_at_marks(tokenizer: &Tokenizer, prompt: &str) -> Result<Piece> {
    let mut ids = Vec::new();
    for (index, part) in prompt.split('!').enumerate() {
        if index > 0 {
            ids.push(PADDING);
        }
        ids.extend(tokenizer.ids(part, Reading::Diffusers)?);
    }
    Ok(Piece::Text { ids, weight: 1.0 })
}

/// A piece's tokens, and the weight of all of them.
fn row(piece: &Piece) -> (Vec<Token>, f32) {
    match piece {
        Piece::Text { ids, weight } => (ids.iter().copied().map(Token::Id).collect(), *weight),
        Piece::Embedding { name, vectors, weight } => {
            let name: Arc<str> = name.as_str().into();
            ((0..*vectors).map(|vector| Token::Embedding { name: Arc::clone(&name), vector }).collect(), *weight)
        }
    }
}

/// The ids around a prompt's own.
#[derive(Clone, Copy)]
struct Ends {
    start: Option<u32>,
    end: u32,
    padding: u32,
}

/// The most tokens of a chunk, and the number that it is padded to.
#[derive(Clone, Copy)]
struct Length {
    most: Option<usize>,
    least: usize,
}

/// Chunks, and the one that is being filled.
struct Filling {
    chunks: Vec<Chunk>,
    tokens: Vec<Token>,
    weights: Vec<f32>,
    ends: Ends,
    length: Length,
}

impl Filling {
    fn new(ends: Ends, length: Length) -> Self {
        let mut filling = Self { chunks: Vec::new(), tokens: Vec::new(), weights: Vec::new(), ends, length };
        filling.begin();
        filling
    }

    fn begin(&mut self) {
        self.tokens.extend(self.ends.start.map(Token::Id));
        self.weights.resize(self.tokens.len(), 1.0);
    }

    /// The number of tokens that fit before the end.
    fn room(&self) -> usize {
        self.length.most.map_or(usize::MAX, |most| most.saturating_sub(self.tokens.len() + 1))
    }

    fn push(&mut self, tokens: &[Token], weight: f32) {
        self.tokens.extend_from_slice(tokens);
        self.weights.resize(self.tokens.len(), weight);
    }

    /// Ends the chunk, pads it, and begins another.
    fn finish(&mut self) {
        self.tokens.push(Token::Id(self.ends.end));
        let used = self.tokens.len();
        let length = used.max(self.length.least);
        self.tokens.resize(length, Token::Id(self.ends.padding));
        self.weights.resize(length, 1.0);
        let end = self.tokens.iter().position(|token| *token == Token::Id(self.ends.end)).unwrap_or(used - 1);
        let (tokens, weights) = (std::mem::take(&mut self.tokens), std::mem::take(&mut self.weights));
        self.chunks.push(Chunk { tokens, weights, used, end });
        self.begin();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(encoder: Encoder, prompt: &str, reading: Reading) -> Tokens {
        let tokenizer = Tokenizer::bundled(encoder.family()).unwrap();
        encoder.tokens(&tokenizer, prompt, reading, None, None).unwrap()
    }

    #[test]
    fn diffusers_cuts_off_what_does_not_fit() {
        for (encoder, length, padding) in
            [(Encoder::ClipL, 77, 49407), (Encoder::ClipG, 77, 0), (Encoder::T5, 512, 0), (Encoder::Umt5, 512, 0)]
        {
            let long = tokens(encoder, &"(cat:1.2) ".repeat(600), Reading::Diffusers);
            let short = tokens(encoder, "cat", Reading::Diffusers);
            assert!(!long.weighted());
            let ([long], [short]) = (long.chunks.as_slice(), short.chunks.as_slice()) else { panic!("one chunk each") };
            assert_eq!((long.tokens.len(), long.used, long.end), (length, length, length - 1));
            assert_eq!(short.tokens.len(), length);
            assert_eq!(short.tokens.last(), Some(&Token::Id(padding)));
            assert_eq!(short.end + 1, short.used);
            assert_eq!(long.tokens.last(), short.tokens.get(short.end));
        }
    }

    #[test]
    fn comfyui_cuts_nothing_off() {
        let long = "cat ".repeat(600);
        assert_eq!(tokens(Encoder::ClipL, &long, Reading::ComfyUi).chunks.len(), 8);
        let t5 = tokens(Encoder::T5, &long, Reading::ComfyUi);
        assert_eq!(t5.chunks.iter().map(|chunk| chunk.used).collect::<Vec<_>>(), [t5.longest()]);
        assert!(t5.longest() > 600);
        assert_eq!(tokens(Encoder::T5, "", Reading::ComfyUi).longest(), 256);
        assert_eq!(tokens(Encoder::Umt5, "", Reading::ComfyUi).longest(), 512);
    }

    #[test]
    fn the_empty_prompt_has_ends_and_padding() {
        let clip = Tokenizer::bundled(Family::Clip).unwrap();
        let ids = |encoder: Encoder| encoder.empty(&clip, 77).unwrap().ids().unwrap();
        let expected = |padding: u32| [vec![49406, 49407], vec![padding; 75]].concat();
        assert_eq!(ids(Encoder::ClipL), expected(49407));
        assert_eq!(ids(Encoder::ClipG), expected(0));
        let t5 = Tokenizer::bundled(Family::T5).unwrap();
        let empty = Encoder::T5.empty(&t5, 256).unwrap();
        assert_eq!((empty.used, empty.end, empty.tokens.len()), (1, 0, 256));
        assert_eq!(empty, tokens(Encoder::T5, "", Reading::ComfyUi).chunks.remove(0));
    }

    #[test]
    fn diffusers_reads_marks_as_padding_for_open_clip() {
        let ids = |encoder, reading| {
            let tokenizer = Tokenizer::bundled(Family::Clip).unwrap();
            let tokens = encoder_tokens(encoder, &tokenizer, "Hat!! a!b !", reading);
            tokens.chunks[0].ids().unwrap()[1..tokens.chunks[0].used - 1].to_vec()
        };
        assert_eq!(ids(Encoder::ClipG, Reading::Diffusers), [3801, 0, 0, 320, 0, 321, 0]);
        assert_eq!(ids(Encoder::ClipL, Reading::Diffusers), ids(Encoder::ClipG, Reading::ComfyUi));
    }

    fn encoder_tokens(encoder: Encoder, tokenizer: &Tokenizer, prompt: &str, reading: Reading) -> Tokens {
        encoder.tokens(tokenizer, prompt, reading, None, None).unwrap()
    }

    #[test]
    fn an_encoder_may_be_shorter_or_longer() {
        let tokenizer = Tokenizer::bundled(Family::Clip).unwrap();
        let long = |encoder: Encoder, count: usize, reading| {
            let tokens = encoder.tokens(&tokenizer, &"cat ".repeat(count), reading, None, Some(248)).unwrap();
            tokens.chunks.iter().map(|chunk| [chunk.tokens.len(), chunk.used, chunk.end]).collect::<Vec<_>>()
        };
        for encoder in [Encoder::ClipL, Encoder::ClipG] {
            assert_eq!(long(encoder, 100, Reading::ComfyUi), [[248, 102, 101]]);
            assert_eq!(long(encoder, 246, Reading::ComfyUi), [[248, 248, 247]]);
            assert_eq!(long(encoder, 247, Reading::ComfyUi), [[248, 248, 247], [248, 3, 2]]);
            assert_eq!(long(encoder, 300, Reading::Diffusers), [[248, 248, 247]]);
        }
        let of = |reading| Encoder::ClipL.tokens(&tokenizer, &"cat ".repeat(40), reading, None, Some(32)).unwrap();
        let lengths = |tokens: Tokens| tokens.chunks.iter().map(|chunk| chunk.tokens.len()).collect::<Vec<_>>();
        assert_eq!(lengths(of(Reading::ComfyUi)), [32, 32]);
        assert_eq!(lengths(of(Reading::Diffusers)), [32]);
        let tokenizer = Tokenizer::bundled(Family::T5).unwrap();
        let of = |prompt, length| Encoder::T5.tokens(&tokenizer, prompt, Reading::ComfyUi, None, length).unwrap();
        assert_eq!(lengths(of("cat", Some(32))), [32]);
        assert_eq!(lengths(of("cat", Some(1000))), [256]);
        assert!(lengths(of(&"cat ".repeat(40), Some(32)))[0] > 32, "nothing is cut off");
    }

    #[test]
    fn the_pooled_place_is_the_first_end() {
        let [chunk] = tokens(Encoder::ClipL, "a <|endoftext|> b", Reading::ComfyUi).chunks.try_into().unwrap();
        assert_eq!((chunk.end, chunk.used), (2, 5));
    }
}
