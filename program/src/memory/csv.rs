//! Reads problems as comma-separated values.
//!
//! The first line names the columns, in any order: `lower`, `upper` and `size` must be there, `id` and `alignment` may be; other columns
//! are ignored. A field is a number or a name without commas and quotes. Spaces around a field, empty lines, a byte order mark and ends of lines
//! of Windows are accepted.

use thiserror::Error;

use super::Buffer;

/// Buffers with their names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// The `id` of each buffer; its number, from 0, if the file has no such column.
    pub ids: Vec<String>,
    /// The buffers.
    pub buffers: Vec<Buffer>,
}

streamvm_ep::debug_as_display!(CsvError);

/// A mistake in a file, and its place. Lines and columns count from 1; a column counts characters.
#[derive(Clone, PartialEq, Eq, Error)]
#[error("{line}:{column}: {message}")]
pub struct CsvError {
    /// The line.
    pub line: usize,
    /// The character at which the field begins.
    pub column: usize,
    /// What was found, and what to do.
    pub message: String,
}

/// The columns that mean something. The first three must be there.
const NAMES: [&str; 5] = ["lower", "upper", "size", "id", "alignment"];

/// A field, and the column at which it begins.
type Field<'a> = (usize, &'a str);

impl Table {
    /// Reads a file.
    ///
    /// # Errors
    /// The first mistake in the file.
    pub fn read(text: &str) -> Result<Self, CsvError> {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let mut lines = (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty());
        let Some((line, header)) = lines.next() else {
            return Err(CsvError {
                line: 1,
                column: 1,
                message: "the file is empty: its first line must name the columns, such as `id,lower,upper,size`"
                    .into(),
            });
        };
        let header = Header::read(line, header)?;
        let mut table = Self { ids: Vec::new(), buffers: Vec::new() };
        for (line, text) in lines {
            let (id, buffer) = header.row(line, text)?;
            table.ids.push(id.unwrap_or_else(|| table.buffers.len().to_string()));
            table.buffers.push(buffer);
        }
        Ok(table)
    }
}

/// The header: where the columns of [`NAMES`] are.
struct Header {
    at: [Option<usize>; NAMES.len()],
    count: usize,
}

impl Header {
    fn read(line: usize, text: &str) -> Result<Self, CsvError> {
        let fields = fields(text);
        let mut at = [None; NAMES.len()];
        for (index, &(column, name)) in fields.iter().enumerate() {
            let Some(known) = NAMES.iter().position(|known| known.eq_ignore_ascii_case(name)) else { continue };
            if at[known].replace(index).is_some() {
                return error(line, column, format!("the column `{name}` is named twice: remove one of them"));
            }
        }
        let missing: Vec<&str> = (0..3).filter(|&known| at[known].is_none()).map(|known| NAMES[known]).collect();
        if let Some(name) = missing.first() {
            let found = shown(text.trim());
            return error(
                line,
                1,
                format!(
                    "there is no column `{name}` in the header `{found}`: the first line must name the columns `lower`, `upper` and `size`, \
                     and may name `id` and `alignment`"
                ),
            );
        }
        Ok(Self { at, count: fields.len() })
    }

    /// The id, if there is such a column, and the buffer of a line.
    fn row(&self, line: usize, text: &str) -> Result<(Option<String>, Buffer), CsvError> {
        let fields = fields(text);
        if fields.len() != self.count {
            let (found, expected) = (fields.len(), self.count);
            let column = fields.get(expected).or(fields.last()).map_or(1, |&(column, _)| column);
            return error(
                line,
                column,
                format!("the line has {found} fields and the header has {expected}: give each column one"),
            );
        }
        let field = |known: usize| self.at[known].map(|index| fields[index]);
        let number = |known: usize, otherwise: u64| match field(known) {
            Some(field) => number(line, NAMES[known], field),
            None => Ok(otherwise),
        };
        let buffer =
            Buffer { lower: number(0, 0)?, upper: number(1, 0)?, size: number(2, 0)?, alignment: number(4, 1)? };
        let column = |known: usize| field(known).map_or(1, |(column, _)| column);
        if buffer.upper < buffer.lower {
            let Buffer { lower, upper, .. } = buffer;
            return error(
                line,
                column(1),
                format!(
                    "`upper` is {upper}, less than `lower`, which is {lower}: a buffer lives from `lower` up to `upper`"
                ),
            );
        }
        if buffer.alignment == 0 {
            return error(line, column(4), "`alignment` is 0: give 1 for any offset".into());
        }
        Ok((field(3).map(|(_, id)| id.to_owned()), buffer))
    }
}

fn error<T>(line: usize, column: usize, message: String) -> Result<T, CsvError> {
    Err(CsvError { line, column, message })
}

/// The fields of a line, without spaces around them.
fn fields(line: &str) -> Vec<Field<'_>> {
    let mut column = 1;
    line.split(',')
        .map(|field| {
            let start = column + field.chars().take_while(|c| c.is_whitespace()).count();
            column += field.chars().count() + 1;
            (start, field.trim())
        })
        .collect()
}

fn number(line: usize, name: &str, (column, text): Field<'_>) -> Result<u64, CsvError> {
    let is_digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    match text.parse() {
        Ok(number) if is_digits => Ok(number),
        _ if is_digits => error(line, column, format!("`{name}` is {}: at most {} can be read", shown(text), u64::MAX)),
        _ if text.is_empty() => error(line, column, format!("`{name}` is missing: give a whole number")),
        _ => {
            error(line, column, format!("`{name}` is `{}`: give a whole number of at least 0, in digits", shown(text)))
        }
    }
}

/// A text from the file, cut if it is long.
fn shown(text: &str) -> String {
    const LONGEST: usize = 60;
    match text.char_indices().nth(LONGEST) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_come_in_any_order_and_others_are_ignored() {
        let text = "\u{feff}size, offset ,UPPER,id,lower,alignment\r\n4,x,9, b 1 ,3,64\r\n\r\n8,,5,b2,5,1\n";
        let table = Table::read(text).unwrap();
        assert_eq!(table.ids, ["b 1", "b2"]);
        assert_eq!(table.buffers, [Buffer { alignment: 64, ..Buffer::new(3, 9, 4) }, Buffer::new(5, 5, 8)]);
        let table = Table::read("lower,upper,size\n1,2,3\n2,3,4").unwrap();
        assert_eq!((table.ids, table.buffers.len()), (vec!["0".to_owned(), "1".to_owned()], 2));
        assert!(Table::read("lower,upper,size").unwrap().buffers.is_empty());
    }

    #[test]
    fn mistakes_are_named_with_their_place() {
        let head = "id,lower,upper,size\n";
        for (text, said) in [
            (
                String::new(),
                "1:1: the file is empty: its first line must name the columns, such as `id,lower,upper,size`",
            ),
            (
                "\n \n".into(),
                "1:1: the file is empty: its first line must name the columns, such as `id,lower,upper,size`",
            ),
            (
                "0,1,2,3\n".into(),
                "1:1: there is no column `lower` in the header `0,1,2,3`: the first line must name the columns `lower`, `upper` and `size`, and may name `id` and `alignment`",
            ),
            ("lower,size,upper, size\n".into(), "1:19: the column `size` is named twice: remove one of them"),
            (head.to_owned() + "a,1,2\n", "2:5: the line has 3 fields and the header has 4: give each column one"),
            (head.to_owned() + "a,1,2,3,44\n", "2:9: the line has 5 fields and the header has 4: give each column one"),
            (
                head.to_owned() + "a,1,2,3\nä, -1,2,3\n",
                "3:4: `lower` is `-1`: give a whole number of at least 0, in digits",
            ),
            (head.to_owned() + "a,1,2,+3\n", "2:7: `size` is `+3`: give a whole number of at least 0, in digits"),
            (head.to_owned() + "a,1,,3\n", "2:5: `upper` is missing: give a whole number"),
            (
                head.to_owned() + "a,1,2,18446744073709551616\n",
                "2:7: `size` is 18446744073709551616: at most 18446744073709551615 can be read",
            ),
            (
                head.to_owned() + "a,5,4,1\n",
                "2:5: `upper` is 4, less than `lower`, which is 5: a buffer lives from `lower` up to `upper`",
            ),
            ("lower,upper,size,alignment\n1,2,3,0\n".into(), "2:7: `alignment` is 0: give 1 for any offset"),
        ] {
            assert_eq!(Table::read(&text).unwrap_err().to_string(), said);
        }
        let long = head.to_owned() + "a,1,2," + &"x".repeat(500);
        assert!(Table::read(&long).unwrap_err().message.len() < 150);
    }
}
