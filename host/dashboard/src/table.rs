//! Tables that stack on narrow screens: each cell then stands below its heading. Roles are spelt
//! out, since browsers forget them if a table's rows have another layout.

use maud::{Markup, html};

/// A column, by its contents.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Column {
    /// Words.
    Text(&'static str),
    /// Words that stay in one line.
    Short(&'static str),
    /// Numbers, which stand to the right.
    Number(&'static str),
    /// Buttons.
    Actions,
}

impl Column {
    const fn label(self) -> &'static str {
        match self {
            Column::Text(label) | Column::Short(label) | Column::Number(label) => label,
            Column::Actions => "Actions",
        }
    }

    const fn class(self) -> &'static str {
        match self {
            Column::Text(_) => "text",
            Column::Short(_) => "short",
            Column::Number(_) => "number",
            Column::Actions => "actions",
        }
    }
}

/// A row: an id that stays the same for the same thing, a class, and a cell per column.
pub(crate) struct Row {
    pub(crate) id: String,
    pub(crate) class: &'static str,
    pub(crate) cells: Vec<Markup>,
}

/// A table. The caption is for screen readers.
pub(crate) fn table(caption: &str, columns: &[Column], rows: &[Row]) -> Markup {
    html! {
        div.wide {
            table role="table" {
                caption.unseen { (caption) }
                thead role="rowgroup" {
                    tr role="row" {
                        @for column in columns {
                            th scope="col" role="columnheader" class=(column.class()) {
                                @if *column == Column::Actions { span.unseen { (column.label()) } } @else { (column.label()) }
                            }
                        }
                    }
                }
                tbody role="rowgroup" {
                    @for row in rows {
                        tr role="row" id=(row.id) class=(row.class) {
                            @for (column, cell) in columns.iter().zip(&row.cells) {
                                td role="cell" class=(column.class()) data-label=(column.label()) { div { (cell) } }
                            }
                        }
                    }
                }
            }
        }
    }
}
