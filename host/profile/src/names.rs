//! The categories of libtorch's operators and of kernels by their names.

use crate::Category::{self, Attention, Convolution, Copies, Elementwise, Gemm, Host, Layout, Norm};

/// Names of operators without their namespace; a star at an end stands for anything. The first row
/// that matches counts. Operators that are in none are arithmetic on each value.
const OPERATORS: &[(Category, &[&str])] = &[
    (Norm, &["norm", "*_norm", "*layer_norm*", "*group_norm*", "*batch_norm*", "*instance_norm*", "*rms_norm*"]),
    (
        Attention,
        &[
            "*scaled_dot_product*",
            "*flash_attention*",
            "*efficient_attention*",
            "*multi_head_attention*",
            "_flash*",
            "_efficient*",
            "*softmax",
            "_softmax*",
        ],
    ),
    (
        Convolution,
        &[
            "*convolution*",
            "conv1d",
            "conv2d",
            "conv3d",
            "conv_tbc",
            "conv_transpose*",
            "*conv_depthwise*",
            "*slow_conv*",
            "thnn_conv*",
            "cudnn_*",
            "miopen_*",
        ],
    ),
    (
        Gemm,
        &[
            "mm",
            "addmm",
            "addmm_",
            "_addmm_activation",
            "bmm",
            "addbmm",
            "addbmm_",
            "baddbmm",
            "baddbmm_",
            "matmul",
            "linear",
            "*_linear",
            "dot",
            "vdot",
            "inner",
            "mv",
            "addmv",
            "addmv_",
            "einsum",
            "tensordot",
            "chain_matmul",
            "bilinear",
            "_scaled_mm",
            "_int_mm",
            "*_grouped_mm",
            "_weight_int*",
            "mkldnn_linear*",
            "_mkl_linear*",
            "fbgemm_linear*",
            "mkldnn_matmul",
        ],
    ),
    (
        Copies,
        &[
            "copy_",
            "_copy_from*",
            "to",
            "_to_copy",
            "_to_cpu",
            "type_as",
            "item",
            "is_nonzero",
            "_local_scalar_dense",
            "pin_memory",
            "_pin_memory",
            "_autocast_to*",
        ],
    ),
    (
        Host,
        &[
            "empty*",
            "new_empty*",
            "_empty_affine*",
            "zeros",
            "new_zeros",
            "zeros_like",
            "resize_",
            "resize_as_",
            "set_",
            "record_stream",
            "detach",
            "detach_",
            "alias",
            "lift_fresh",
            "result_type",
            "resolve_conj",
            "resolve_neg",
            "is_*",
            // Views, which move nothing.
            "permute",
            "transpose",
            "transpose_",
            "t",
            "t_",
            "view*",
            "_unsafe_view",
            "unflatten",
            "squeeze*",
            "unsqueeze*",
            "expand*",
            "as_strided*",
            "slice*",
            "select*",
            "narrow*",
            "chunk",
            "split*",
            "unsafe_split*",
            "unsafe_chunk",
            "tensor_split",
            "unbind",
            "movedim",
            "moveaxis",
            "swapaxes",
            "swapdims",
            "diagonal",
            "unfold*",
        ],
    ),
    (
        Layout,
        &[
            "contiguous",
            "clone",
            "cat",
            "concat",
            "concatenate",
            "_cat",
            "stack",
            "hstack",
            "vstack",
            "dstack",
            "pad",
            "constant_pad_nd",
            "reflection_pad*",
            "replication_pad*",
            "_pad*",
            "reshape*",
            "_reshape*",
            "flatten",
            "repeat*",
            "tile",
            "upsample_nearest*",
            "_upsample_nearest*",
            "index",
            "index_select",
            "gather",
            "take*",
            "embedding",
            "flip",
            "roll",
            "rot90",
            "im2col",
            "col2im",
            "pixel_shuffle",
            "pixel_unshuffle",
            "channel_shuffle",
            "to_mkldnn",
            "to_dense",
            "mkldnn_reorder*",
        ],
    ),
];

/// Parts of names of kernels in small letters. The first row that matches counts. Kernels that are
/// in none are arithmetic on each value.
const KERNELS: &[(Category, &[&str])] = &[
    (Copies, &["memcpy", "memset", "convert"]),
    (Elementwise, &["distribution", "normal_kernel"]),
    (Attention, &["flash", "fmha", "softmax", "attention", "sdpa"]),
    (Norm, &["norm", "rowwisemoments", "welford"]),
    (Layout, &["im2col", "col2im", "transpose", "nchwtonhwc", "nhwctonchw", "catarray", "concat", "permute"]),
    (Convolution, &["conv", "winograd", "implicit_gemm", "implicitgemm", "igemm", "fprop", "miopen"]),
    (Gemm, &["gemm", "gemv", "cutlass", "cublas", "cijk_", "wmma", "nvjet", "splitk"]),
    (Copies, &["copy"]),
    (Layout, &["upsample_nearest", "upsamplenearest", "pad1d", "pad2d", "pad3d", "indexselect"]),
];

/// Calls that wait for a GPU.
const WAITS: &[&str] = &["*Synchronize*", "aten::item", "aten::_local_scalar_dense"];

/// The category of an operator of libtorch that is in no operation.
pub fn of_operator(name: &str) -> Category {
    let plain = name.rsplit_once("::").map_or(name, |(_, plain)| plain);
    // The profiler of some releases adds the overload.
    let plain = plain.split_once('.').map_or(plain, |(plain, _)| plain);
    let row = OPERATORS.iter().find(|(_, patterns)| patterns.iter().any(|pattern| matches(pattern, plain)));
    row.map_or(Elementwise, |(category, _)| *category)
}

/// The category of a kernel whose operator is unknown.
pub fn of_kernel(name: &str) -> Category {
    let name = name.to_ascii_lowercase();
    let row = KERNELS.iter().find(|(_, parts)| parts.iter().any(|part| name.contains(part)));
    row.map_or(Elementwise, |(category, _)| *category)
}

/// True for an operator or a call that waits for a GPU instead of giving it work.
pub fn is_wait(name: &str) -> bool {
    WAITS.iter().any(|pattern| matches(pattern, name))
}

fn matches(pattern: &str, name: &str) -> bool {
    match (pattern.strip_prefix('*'), pattern.strip_suffix('*')) {
        (Some(_), Some(_)) => name.contains(pattern.trim_matches('*')),
        (Some(end), None) => name.ends_with(end),
        (None, Some(start)) => name.starts_with(start),
        (None, None) => name == pattern,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operators_are_found_by_their_names() {
        for (category, names) in [
            (Gemm, &["aten::mm", "aten::linear", "aten::_scaled_mm", "mkldnn::_linear", "aten::baddbmm"][..]),
            (
                Convolution,
                &["aten::conv2d", "aten::_convolution", "aten::miopen_convolution", "aten::cudnn_convolution"],
            ),
            (Norm, &["aten::native_group_norm", "aten::layer_norm", "aten::cudnn_batch_norm", "aten::rms_norm"]),
            (Attention, &["aten::scaled_dot_product_attention", "aten::_flash_attention_forward", "aten::_softmax"]),
            (Copies, &["aten::copy_", "aten::to", "aten::_local_scalar_dense", "aten::to.dtype"]),
            (Layout, &["aten::contiguous", "aten::cat", "aten::upsample_nearest2d", "aten::flip"]),
            (Host, &["aten::empty_strided", "aten::zeros", "aten::view", "aten::t"]),
            (Elementwise, &["aten::add", "aten::tanh", "aten::silu_", "tilewright::unknown", ""]),
        ] {
            for name in names {
                assert_eq!(of_operator(name), category, "{name}");
            }
        }
    }

    #[test]
    fn kernels_are_found_by_parts_of_their_names() {
        for (category, name) in [
            (Gemm, "Cijk_Ailk_Bljk_HHS_BH_MT128x128x16"),
            (Gemm, "ampere_fp16_s16816gemm_fp16_128x64"),
            (Convolution, "sm80_xmma_fprop_implicit_gemm_f16"),
            (Convolution, "miopenSp3AsmConv_v21_1_3_gfx11_fp32_f2x3"),
            (Attention, "pytorch_flash::flash_fwd_kernel<128>"),
            (Attention, "fmha_cutlassF_f16_aligned_64x64_rf_sm80"),
            (Norm, "void at::native::RowwiseMomentsCUDAKernel<float>"),
            (Layout, "void at::native::CatArrayBatchedCopy<float>"),
            (Layout, "void nchwToNhwcKernel<float>"),
            (Copies, "Memcpy HtoD (Pinned -> Device)"),
            (Copies, "unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda>"),
            (Elementwise, "void at::native::vectorized_elementwise_kernel<4, FillFunctor<float>>"),
            (Elementwise, "distribution_elementwise_grid_stride_kernel<normal_and_transform>"),
        ] {
            assert_eq!(of_kernel(name), category, "{name}");
        }
    }

    #[test]
    fn waits_are_known() {
        assert!(is_wait("cudaDeviceSynchronize") && is_wait("hipEventSynchronize") && is_wait("aten::item"));
        assert!(!is_wait("cudaLaunchKernel") && !is_wait("aten::items"));
    }
}
