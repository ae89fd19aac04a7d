//! The text stage of a prompt's picture or clip: conditionings that an earlier run has kept, and
//! those that encoders make.

use std::path::PathBuf;

use tilewright_engine::Observer;
use tilewright_plan::PolicyIdentity;

use super::{Conditioning, EncoderRun, KeptConditionings, Machines, TextEncoders, TextPlanning, TextRequest};
use crate::{Error, Result};

/// The conditionings of a prompt and of the negative one, a conditioning each: found or made.
#[derive(Debug)]
pub struct TextStage<'a> {
    kept: Option<&'a KeptConditionings>,
    request: TextRequest<'a>,
    /// The key of each prompt's conditioning, and its path if it is kept.
    found: Vec<(String, Option<PathBuf>)>,
    made: Vec<Conditioning>,
}

/// The place of a prompt's conditioning.
#[derive(Debug)]
pub enum PlacedConditioning {
    /// A file among the kept ones.
    Kept(PathBuf),
    /// Memory: none are kept, or this one could not be.
    Made(Conditioning),
}

impl<'a> TextStage<'a> {
    /// Looks for the conditioning of each prompt of a request to the encoders at these paths.
    ///
    /// # Errors
    /// An encoder's file is not there.
    pub fn find(
        kept: Option<&'a KeptConditionings>,
        paths: &[PathBuf],
        request: TextRequest<'a>,
        policy: &PolicyIdentity,
    ) -> Result<Self> {
        let find = |prompt: &String| match kept {
            None => Ok((String::new(), None)),
            Some(kept) => {
                kept.find(paths, &TextRequest { prompts: std::slice::from_ref(prompt), ..request.clone() }, policy)
            }
        };
        let found = request.prompts.iter().map(find).collect::<Result<_>>()?;
        Ok(Self { kept, request, found, made: Vec::new() })
    }

    /// True if every conditioning is kept: no encoder has to be opened.
    pub fn is_kept(&self) -> bool {
        self.found.iter().all(|(_, path)| path.is_some())
    }

    /// Decides about each encoder's run on all prompts, and carries nothing out.
    ///
    /// # Errors
    /// As [`TextEncoders::decide`].
    pub fn decide(
        &self,
        encoders: &TextEncoders,
        machines: Machines<'_>,
        planning: &mut TextPlanning<'_>,
    ) -> Result<Vec<EncoderRun>> {
        encoders.decide(machines, &self.request, planning)
    }

    /// Encodes the prompts whose conditionings are not kept.
    ///
    /// # Errors
    /// As [`TextEncoders::encode_each`].
    pub fn encode(
        &mut self,
        encoders: &TextEncoders,
        machines: Machines<'_>,
        planning: &mut TextPlanning<'_>,
        observer: &mut dyn Observer,
    ) -> Result<Vec<EncoderRun>> {
        let each = self.request.prompts.iter().zip(&self.found);
        let missing: Vec<String> =
            each.filter(|(_, (_, path))| path.is_none()).map(|(prompt, _)| prompt.clone()).collect();
        let request = TextRequest { prompts: &missing, ..self.request.clone() };
        let (made, runs) = encoders.encode_each(machines, &request, planning, observer)?;
        self.made = made;
        Ok(runs)
    }

    /// All conditionings in the prompts' order. Those that were made are kept; one that can't be is
    /// handed out, and the reason goes to `unkept`.
    pub fn complete(self, unkept: &mut dyn FnMut(Error)) -> Vec<PlacedConditioning> {
        let mut made = self.made.into_iter();
        let place = |(key, path): (String, Option<PathBuf>)| {
            if let Some(path) = path {
                return Some(PlacedConditioning::Kept(path));
            }
            let conditioning = made.next()?;
            Some(match self.kept.map(|kept| kept.keep(&key, &conditioning)) {
                Some(Ok(path)) => PlacedConditioning::Kept(path),
                Some(Err(error)) => {
                    unkept(error);
                    PlacedConditioning::Made(conditioning)
                }
                None => PlacedConditioning::Made(conditioning),
            })
        };
        self.found.into_iter().filter_map(place).collect()
    }
}

#[cfg(test)]
mod tests {
    use tch::Tensor;
    use tilewright_plan::Objective;
    use tilewright_sampling::Convention;

    use super::*;

    #[test]
    fn conditionings_come_in_the_order_of_their_prompts() {
        let prompts = ["kept", "made"].map(str::to_owned);
        let request = TextRequest {
            prompts: &prompts,
            convention: Convention::ComfyUi,
            tokens: None,
            embeddings: None,
            memory_limit: 1,
            objective: Objective::Balanced,
        };
        let text = Tensor::from_slice(&[7.0_f32]).reshape([1, 1, 1]);
        let made = vec![Conditioning { text, pooled: None, image: None, condition: None, texts: Vec::new() }];
        let found = vec![(String::new(), Some("kept.safetensors".into())), (String::new(), None)];
        let stage = TextStage { kept: None, request, found, made };
        assert!(!stage.is_kept());
        match &stage.complete(&mut |error| panic!("{error}"))[..] {
            [PlacedConditioning::Kept(path), PlacedConditioning::Made(made)] => {
                assert_eq!(path.to_str(), Some("kept.safetensors"));
                assert_eq!(made.text.double_value(&[0, 0, 0]), 7.0);
            }
            other => panic!("{other:?}"),
        }
    }
}
