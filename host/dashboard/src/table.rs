//! Tables that stack where there is no room: each cell then stands below its heading. Roles are spelt out, since browsers forget them
//! where a table's rows are laid out as anything else.

use maud::{Markup, html};

/// What a column holds.
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

/// A row: an id that stays with what it is about, a class, and a cell per column.
pub(crate) struct Row {
    pub(crate) id: String,
    pub(crate) class: &'static str,
    pub(crate) cells: Vec<Markup>,
}

/// A table. The caption is for those who can't see it.
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
