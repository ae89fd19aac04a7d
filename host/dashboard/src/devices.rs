//! Devices: memory and load.

use maud::{Markup, html};

use crate::facts::Device;
use crate::frame::section;
use crate::units::{count, percent, size};
use crate::{address, words};

/// The element with the id `devices`.
pub(crate) fn devices(devices: &[Device]) -> Markup {
    let body = html! {
        @if devices.is_empty() {
            p.empty { "No device is set up. Name one in the configuration, under " code { "[devices.NAME]" } "." }
        }
        @for device in devices { (card(device)) }
    };
    section("devices", "Devices", None, body)
}

fn card(device: &Device) -> Markup {
    let share =
        |bytes: u64| if device.total_bytes == 0 { 0.0 } else { (bytes as f64 / device.total_bytes as f64).min(1.0) };
    let used = share(device.used_bytes);
    let words = format!("{} of {} in use", size(device.used_bytes), size(device.total_bytes));
    html! {
        article.device id=(address::id("device", &device.name)) {
            h3 {
                (device.name) " "
                span.quiet { (device.backend) }
                @if device.fault.is_some() { " " (words::badge("bad", "out of order")) }
            }
            p.quiet { (device.about) }
            @if let Some(fault) = &device.fault { p.fault { (fault) } }
            svg.bar viewBox="0 0 100 4" preserveAspectRatio="none" role="img" aria-label=(words) {
                rect.rest width="100" height="4" {}
                rect.used width=(wide(used)) height="4" {}
                @if let Some(held) = device.held_bytes { rect.held width=(wide(share(held).min(used))) height="4" {} }
                @if device.limit_bytes > 0 && device.limit_bytes < device.total_bytes {
                    rect.limit x=(wide((share(device.limit_bytes) - 0.004).max(0.0))) width="0.8" height="4" {}
                }
            }
            p.memory {
                strong { (words) } " (" (percent(used)) ")"
                @if let Some(held) = device.held_bytes { span.key.held { (size(held)) " held by Tilewright" } }
                @if device.limit_bytes > 0 { span.key.limit { (size(device.limit_bytes)) " at most per job" } }
            }
            dl.pair {
                div { dt { "Running" } dd { (count(device.running.into())) } }
                div { dt { "Queued" } dd { (count(device.queued.into())) span.quiet { " of " (count(device.queue_most.into())) } } }
            }
        }
    }
}

/// A share of one as a width in a drawing that is 100 wide.
fn wide(share: f64) -> String {
    format!("{:.1}", share * 100.0)
}
