//! The protocol by which diffusers runs autoencoders elsewhere (`diffusers.utils.remote_utils` of
//! 0.42): a tensor's bytes come in a request's body with its shape and dtype in the query, and
//! what was made of it goes out as the answer's body. Each request is a job.

mod elements;
mod latents;
mod parameters;
mod values;

pub use self::{
    elements::Element,
    latents::{Input, Scaling},
    parameters::{Output, Parameters},
    values::{Arrangement, Values},
};
