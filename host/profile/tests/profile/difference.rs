//! Comparisons of two profiles.

use tilewright_profile::{Category::Gemm, Difference, Part, text};

use crate::made::Made;

#[test]
fn a_comparison_says_where_the_difference_lies() {
    let stage = |length: f64, product: f64| {
        Made::stage(length)
            .part(Part::Layer, "a", 0.0, product)
            .operation(Gemm, [1e9, 1e6], 0.0, product)
            .part(Part::Layer, "b", product, product + 5.0)
            .operator("aten::add", 0, product, product + 5.0)
            .profile(false)
    };
    let difference = Difference::between(&stage(100.0, 80.0), &stage(70.0, 40.0));
    let rows: Vec<(&str, f64)> =
        difference.categories.iter().map(|row| (row.name.as_str(), row.difference_ms)).collect();
    assert_eq!(rows, [("gemm", -40.0), ("host", 10.0), ("elementwise", 0.0)]);
    assert_eq!((difference.layers[0].name.as_str(), difference.layers[0].difference_ms), ("a", -40.0));
    let sentence = "decode takes 70.0 ms after 100 ms, 30.0 ms less: most of it in gemm (40.0 ms less), and of the layers in a \
                    (40.0 ms less)";
    assert_eq!(difference.sentence, sentence);
    let [categories, layers] = text::difference(&difference, 1);
    assert_eq!(categories.rows[1], ["host", "15.0 ms", "25.0 ms", "+10.0 ms"]);
    assert_eq!(layers.rows.len(), 1);

    let none = Difference::between(&stage(70.0, 40.0), &stage(70.0, 40.0));
    assert_eq!(none.sentence, "decode takes 70.0 ms after 70.0 ms: no difference");
}

#[test]
fn what_only_one_has_counts_whole() {
    let (with, without) = (Made::stage(10.0).operation(Gemm, [0.0, 0.0], 0.0, 10.0), Made::stage(2.0));
    let difference = Difference::between(&without.profile(false), &with.profile(false));
    let gemm = &difference.categories[0];
    assert_eq!((gemm.name.as_str(), gemm.before_ms, gemm.after_ms), ("gemm", 0.0, 10.0));
    assert_eq!(
        difference.sentence,
        "decode takes 10.0 ms after 2.00 ms, 8.00 ms more: most of it in gemm (10.0 ms more)"
    );
}
