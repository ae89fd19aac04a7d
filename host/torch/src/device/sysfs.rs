//! AMD's GPUs as the kernel driver shows them below `/sys`.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// One AMD GPU as its kernel driver sees it; sizes in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AmdGpu {
    /// The GPU's address on the PCI bus, "0000:c5:00.0".
    pub pci: String,
    /// "gfx1151"; empty if the topology does not tell.
    pub arch: String,
    /// Memory of the card's own, or an APU's carve-out.
    pub vram_total: u64,
    /// The used part of `vram_total`.
    pub vram_used: u64,
    /// System memory that it can address.
    pub gtt_total: u64,
    /// The used part of `gtt_total`.
    pub gtt_used: u64,
}

/// AMD GPUs, by their addresses on the PCI bus.
pub fn amd_gpus() -> Vec<AmdGpu> {
    amd_gpus_below(Path::new("/sys"))
}

/// The AMD GPU of an address on the PCI bus.
pub(super) fn amd_gpu(pci: &str) -> Option<AmdGpu> {
    amd_gpu_below(Path::new("/sys"), pci)
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<_> = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    paths.sort();
    paths
}

fn amd_gpus_below(sys: &Path) -> Vec<AmdGpu> {
    let names = entries(&sys.join("bus/pci/devices")).into_iter().filter_map(|path| {
        let name = path.file_name()?.to_str()?.to_owned();
        amd_gpu_below(sys, &name)
    });
    names.collect()
}

fn amd_gpu_below(sys: &Path, pci: &str) -> Option<AmdGpu> {
    // HIP writes hexadecimal digits in either case.
    let pci = pci.to_ascii_lowercase();
    let device = sys.join("bus/pci/devices").join(&pci);
    let number = |name: &str| fs::read_to_string(device.join(name)).ok()?.trim().parse().ok();
    Some(AmdGpu {
        vram_total: number("mem_info_vram_total")?,
        vram_used: number("mem_info_vram_used")?,
        gtt_total: number("mem_info_gtt_total")?,
        gtt_used: number("mem_info_gtt_used")?,
        arch: arch(sys, &pci).unwrap_or_default(),
        pci,
    })
}

/// The architecture of the compute node with this address on the PCI bus.
fn arch(sys: &Path, pci: &str) -> Option<String> {
    let (domain, location) = location(pci)?;
    entries(&sys.join("class/kfd/kfd/topology/nodes")).iter().find_map(|node| {
        let text = fs::read_to_string(node.join("properties")).ok()?;
        let field = |name: &str| -> Option<u64> {
            text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?.trim().parse().ok()
        };
        let is_here = field("location_id") == Some(location) && field("domain").unwrap_or(0) == domain;
        // The processor is a node too, of version 0.
        let version = field("gfx_target_version").filter(|version| is_here && *version != 0)?;
        Some(gfx_name(version))
    })
}

/// The domain, and the bus, device and function as the compute driver writes them in one number
/// (Linux, drivers/gpu/drm/amd/amdkfd/kfd_topology.c: `pci_dev_id`).
fn location(pci: &str) -> Option<(u64, u64)> {
    let (rest, function) = pci.rsplit_once('.')?;
    let mut parts = rest.rsplit(':');
    let hexadecimal = |text: &str| u64::from_str_radix(text, 16).ok();
    let (device, bus) = (hexadecimal(parts.next()?)?, hexadecimal(parts.next()?)?);
    let domain = parts.next().map_or(Some(0), hexadecimal)?;
    Some((domain, bus << 8 | device << 3 | hexadecimal(function)?))
}

/// The kernel's decimal version to the compiler's name: 110501 is gfx1151, 90010 is gfx90a.
fn gfx_name(version: u64) -> String {
    let (major, minor, step) = (version / 10_000, version / 100 % 100, version % 100);
    format!("gfx{major}{minor:x}{step:x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tree like the kernel's.
    struct Sys(tempfile::TempDir);

    impl Sys {
        fn new() -> Self {
            Self(tempfile::tempdir().unwrap())
        }

        fn write(&self, path: &str, text: &str) {
            let path = self.0.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }

        /// A GPU, which the kernel lists as a card and as a render node, too.
        fn card(&self, pci: &str, drm: u32, vram: u64, gtt: u64) {
            for (name, value) in [("vram_total", vram), ("vram_used", 1), ("gtt_total", gtt), ("gtt_used", 2)] {
                self.write(&format!("bus/pci/devices/{pci}/mem_info_{name}"), &format!("{value}\n"));
                for node in [format!("card{drm}"), format!("renderD{}", 128 + drm)] {
                    self.write(&format!("class/drm/{node}/device/mem_info_{name}"), &format!("{value}\n"));
                }
            }
        }

        fn node(&self, number: u32, version: u64, location: u64) {
            let text = format!("simd_count 80\ngfx_target_version {version}\nlocation_id {location}\ndomain 0\n");
            self.write(&format!("class/kfd/kfd/topology/nodes/{number}/properties"), &text);
        }
    }

    #[test]
    fn gfx_versions_become_names() {
        for (version, name) in [(110_501, "gfx1151"), (90_010, "gfx90a"), (100_300, "gfx1030"), (90_402, "gfx942")] {
            assert_eq!(gfx_name(version), name);
        }
    }

    #[test]
    fn a_gpu_is_listed_once_and_found_by_its_address() {
        let sys = Sys::new();
        sys.node(0, 0, 0);
        sys.node(1, 110_501, 0xc500);
        sys.card("0000:c5:00.0", 0, 512 << 20, 120 << 30);
        sys.write("bus/pci/devices/0000:00:00.0/vendor", "0x1022\n");
        let expected = AmdGpu {
            pci: "0000:c5:00.0".into(),
            arch: "gfx1151".into(),
            vram_total: 512 << 20,
            vram_used: 1,
            gtt_total: 120 << 30,
            gtt_used: 2,
        };
        assert_eq!(amd_gpus_below(sys.0.path()), std::slice::from_ref(&expected));
        assert_eq!(amd_gpu_below(sys.0.path(), "0000:C5:00.0"), Some(expected));
        assert_eq!(amd_gpu_below(sys.0.path(), "0000:c6:00.0"), None);
    }

    #[test]
    fn two_gpus_keep_their_architectures_in_any_order_of_the_kernel() {
        let sys = Sys::new();
        // Node 10 sorts before node 2 as text, and the integrated one is the first card.
        sys.node(2, 110_000, 0x0300);
        sys.node(10, 100_306, 0x1800);
        sys.card("0000:18:00.0", 0, 512 << 20, 16 << 30);
        sys.card("0000:03:00.0", 1, 24 << 30, 32 << 30);
        let found: Vec<_> = ["0000:03:00.0", "0000:18:00.0"]
            .iter()
            .map(|pci| amd_gpu_below(sys.0.path(), pci).map(|gpu| (gpu.arch, gpu.vram_total)))
            .collect();
        assert_eq!(found, [Some(("gfx1100".into(), 24 << 30)), Some(("gfx1036".into(), 512 << 20))]);
    }

    #[test]
    fn a_gpu_without_a_compute_node_has_no_architecture() {
        let sys = Sys::new();
        sys.card("0000:03:00.0", 0, 8 << 30, 16 << 30);
        assert_eq!(amd_gpu_below(sys.0.path(), "0000:03:00.0").unwrap().arch, "");
    }
}
