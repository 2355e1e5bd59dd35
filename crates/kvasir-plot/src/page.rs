//! The page: headline figures, plots, tables, and the style sheet they share.

use super::markup::{STYLE, escape, put};

/// A headline figure.
#[derive(Debug, Clone)]
pub struct Figure {
    /// The value with its unit.
    pub value: String,
    /// Its label, in a few words.
    pub label: String,
}

/// A table; every row has as many cells as the head.
#[derive(Debug, Clone, Default)]
pub struct Table {
    /// Column titles.
    pub head: Vec<String>,
    /// Rows of cells; the first column is text, the others are numbers.
    pub rows: Vec<Vec<String>>,
}

/// An HTML page under construction.
#[derive(Debug, Clone)]
pub struct Page {
    title: String,
    body: String,
}

impl Page {
    /// A page with a title and a first paragraph.
    pub fn new(title: &str, lede: &str) -> Self {
        let body = format!("<h1>{}</h1>\n<p class=\"lede\">{}</p>\n", escape(title), escape(lede));
        Self { title: title.to_owned(), body }
    }

    /// A row of headline figures.
    pub fn figures(&mut self, figures: &[Figure]) {
        self.body.push_str("<dl class=\"figures\">\n");
        for figure in figures {
            put(
                &mut self.body,
                format_args!(
                    "<div><dt>{}</dt><dd>{}</dd></div>",
                    escape(&figure.label),
                    escape(&figure.value)
                ),
            );
        }
        self.body.push_str("</dl>\n");
    }

    /// A heading.
    pub fn heading(&mut self, heading: &str) {
        put(&mut self.body, format_args!("<h2>{}</h2>", escape(heading)));
    }

    /// A paragraph.
    pub fn paragraph(&mut self, paragraph: &str) {
        put(&mut self.body, format_args!("<p>{}</p>", escape(paragraph)));
    }

    /// A block of preformatted text (a listing, generated text).
    pub fn preformatted(&mut self, content: &str) {
        put(&mut self.body, format_args!("<pre>{}</pre>", escape(content)));
    }

    /// A drawing made by this module, with a caption.
    pub fn drawing(&mut self, svg: &str, caption: &str) {
        let caption = escape(caption);
        put(&mut self.body, format_args!("<figure>\n{svg}\n<figcaption>{caption}</figcaption>\n</figure>"));
    }

    /// A table.
    pub fn table(&mut self, table: &Table) {
        let row = |tag: &str, cells: &[String]| {
            let cells: String = cells.iter().map(|c| format!("<{tag}>{}</{tag}>", escape(c))).collect();
            format!("<tr>{cells}</tr>\n")
        };
        let rows: String = table.rows.iter().map(|r| row("td", r)).collect();
        put(
            &mut self.body,
            format_args!(
                "<div class=\"scroll\"><table>\n<thead>{}</thead>\n<tbody>\n{rows}</tbody>\n</table></div>",
                row("th", &table.head)
            ),
        );
    }

    /// The whole document. `footer` says how it was made.
    pub fn finish(self, footer: &str) -> String {
        format!(
            "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n\
             <title>{}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n{}<footer>{}</footer>\n\
             </main>\n</body>\n</html>\n",
            escape(&self.title),
            self.body,
            escape(footer)
        )
    }
}
