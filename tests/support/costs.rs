//! The costs that the published times were computed with.

/// F, I, W of one chunk action, by the names of the oracle.
const COSTS: [(&str, [f64; 3]); 6] = [
    ("unit", [1.0, 1.0, 1.0]),
    ("f2", [2.0, 2.0, 1.0]),
    ("FeqB", [2.0, 1.0, 1.0]),
    ("uneven", [10.0, 13.0, 7.0]),
    ("wbig", [10.0, 9.0, 12.0]),
    ("Beq1", [1.0, 0.0, 1.0]),
];

/// F, I, W of one chunk action, by the name that the oracle gives the set.
pub(crate) fn costs(name: &str) -> [f64; 3] {
    COSTS.into_iter().find(|(known, _)| *known == name).unwrap_or_else(|| panic!("no costs are called {name}")).1
}
