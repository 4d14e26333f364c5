//! A comparison as a report.

use super::{Comparison, Quantity};
use crate::report::number::{number, ratio};
use crate::report::{Report, Side, Table};

impl Comparison {
    /// Warnings and one row for each quantity.
    pub fn report(&self) -> Report {
        let mut report = Report::new(format!("B over A: two records of {}", self.kind.name()));
        report.introduce(format!("A was measured at {}, B at {}.", self.time_a, self.time_b));
        if !self.warnings.is_empty() {
            let section = report.section("Not alike");
            for warning in &self.warnings {
                section.text(format!("warning: {warning}"));
            }
        }
        let mut table = Table::new(
            "",
            &[
                ("quantity", Side::Left),
                ("A", Side::Right),
                ("B", Side::Right),
                ("B / A (95 % interval)", Side::Left),
                ("from", Side::Left),
            ],
        );
        for Quantity { name, a, b, ratio: of, basis } in &self.quantities {
            let of = of.as_ref().map_or_else(|| "-".to_owned(), ratio);
            table.row([name.clone(), number(*a), number(*b), of, basis.name().to_owned()]);
        }
        report.section("Quantities").table(table);
        report
    }
}
