//! Devices: memory and load.

use maud::{Markup, html};

use tilewright_plan::Device;

use crate::address;
use crate::frame::section;
use crate::units::{count, percent, size};
use crate::views::DeviceView;

/// The element with the id `devices`.
pub(crate) fn devices(devices: &[DeviceView]) -> Markup {
    let body = html! {
        @if devices.is_empty() {
            p.empty { "No device is set up. Name one in the configuration, under " code { "[devices.NAME]" } "." }
        }
        @for device in devices { (card(device)) }
    };
    section("devices", "Devices", None, body)
}

fn card(view: &DeviceView) -> Markup {
    let device = &view.device;
    let Device { backend, name: about, total_bytes, .. } = &device.facts;
    let share = |bytes: u64| if *total_bytes == 0 { 0.0 } else { (bytes as f64 / *total_bytes as f64).min(1.0) };
    let (used, held, limit) =
        (share(view.used_bytes), device.in_use_bytes + device.pooled_bytes, device.memory_limit_bytes);
    let words = format!("{} of {} in use", size(view.used_bytes), size(*total_bytes));
    html! {
        article.device id=(address::id("device", &device.name)) {
            h3 {
                (device.name) " "
                span.quiet { (format!("{backend:?}").to_lowercase()) }
            }
            p.quiet { (about) }
            svg.bar viewBox="0 0 100 4" preserveAspectRatio="none" role="img" aria-label=(words) {
                rect.rest width="100" height="4" {}
                rect.used width=(wide(used)) height="4" {}
                rect.held width=(wide(share(held).min(used))) height="4" {}
                @if limit > 0 && limit < *total_bytes {
                    rect.limit x=(wide((share(limit) - 0.004).max(0.0))) width="0.8" height="4" {}
                }
            }
            p.memory {
                strong { (words) } " (" (percent(used)) ")"
                span.key.held { (size(held)) " held by Tilewright" }
                @if limit > 0 { span.key.limit { (size(limit)) " at most per job" @if device.counts_weights { ", weights included" } } }
            }
            dl.pair {
                div { dt { "Running" } dd { (count(device.running.into())) } }
                div { dt { "Queued" } dd { (count(device.queued as u64)) span.quiet { " of " (count(device.queue.into())) } } }
            }
        }
    }
}

/// A share of one as a width in a drawing that is 100 wide.
fn wide(share: f64) -> String {
    format!("{:.1}", share * 100.0)
}
