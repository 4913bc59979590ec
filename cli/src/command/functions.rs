//! `streamvm functions`: the functions of the language, for people and for programs.

use std::io::{self, Write};

use serde_json::{Value, json};

use crate::base::engine::DType;
use crate::command::{Exit, written};
use crate::syntax::functions::{Function, functions};

/// A function as JSON; what only ops have is null for the others.
fn described(function: Function) -> Value {
    let dtypes: Vec<&str> = function.dtypes.iter().map(|dtype| dtype.name()).collect();
    let op = function.op;
    let accuracy = op.map(|op| op.accuracy());
    json!({
        "function": function.name,
        "class": op.map(|op| format!("{:?}", op.class())),
        "dtypes": dtypes,
        "calls": function.calls().collect::<Vec<_>>(),
        "gives": op.map(|op| op.documentation()),
        "numpy": op.and_then(|op| op.numpy()),
        // Of a function of numbers, whose other results are the nearest ones.
        "ulp": accuracy.filter(|it| it.is_function()).map(|it| it.on_cpu(1)),
        "reduces_no_elements": op.map(|op| op.reduces_no_elements()),
    })
}

/// `streamvm functions`
///
/// # Errors
/// Only if `err` cannot be written.
pub fn list_functions(json: bool, out: &mut dyn Write, err: &mut dyn Write) -> io::Result<Exit> {
    let text = if json {
        format!("{:#}\n", Value::from_iter(functions().map(described)))
    } else {
        let line = |it: Function| {
            let dtypes: Vec<&str> = it.dtypes.iter().map(|dtype| dtype.name()).collect();
            let dtypes = if it.dtypes.len() == DType::ALL.len() { "all".to_owned() } else { dtypes.join(" ") };
            format!("{:34}{dtypes}\n", it.calls().next().unwrap_or_default())
        };
        functions().map(line).collect()
    };
    Ok(written(write!(out, "{text}").and_then(|()| out.flush()), err)?.unwrap_or(Exit::Fine))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_told_what_a_function_computes_and_people_what_it_accepts() {
        let printed = |json: bool| {
            let mut out = Vec::new();
            assert_eq!(list_functions(json, &mut out, &mut Vec::new()).unwrap(), Exit::Fine);
            String::from_utf8(out).unwrap()
        };
        let all: Vec<Value> = serde_json::from_str(&printed(true)).unwrap();
        let found = |name: &str| all.iter().find(|it| it["function"] == name).unwrap();
        let tanh = found("tanh");
        assert_eq!((&tanh["numpy"], &tanh["ulp"]), (&json!("np.tanh({0})"), &json!(3.0)));
        assert_eq!(found("cat")["class"], Value::Null);
        assert!(printed(false).contains("\none_hot i 10 f32                  i32 i64 u8\n"));
    }
}
