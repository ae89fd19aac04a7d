//! Stand-in.
use super::Config;
use crate::{Checkpoint, Identity, Result};
pub(super) struct Weights<'a> {
    file: &'a Checkpoint,
}
impl<'a> Weights<'a> {
    pub fn new(file: &'a Checkpoint, _: &Identity, _: &Config) -> Result<Self> {
        Ok(Self { file })
    }
    pub fn all_present(&self) -> Result<()> {
        Ok(())
    }
    pub fn load(&self, name: &str, shape: &[usize], kind: tch::Kind, device: tch::Device) -> Result<tch::Tensor> {
        self.file.load(name, shape, kind, device)
    }
}
