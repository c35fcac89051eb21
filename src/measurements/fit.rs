//! Fits parameters of a stack to measurements: a search by the simplex of Nelder and Mead (1965) in the logarithms of the
//! parameters, deterministic, held near the values that it starts from.

use super::{MeasurementError, Prepared};
use crate::sim::cost::analytic::Parameters;
use serde_json::Value;

/// What a fit found.
#[derive(Clone, Debug)]
pub struct Fitted {
    /// The parameters, the fitted ones with their source.
    pub parameters: Parameters,
    /// Each fitted parameter before and after.
    pub values: Vec<(String, [f64; 2])>,
    /// Mean absolute error of the logarithms before and after.
    pub error: [f64; 2],
}

/// How strongly a parameter is held near its start: the error that a change by a factor of `e` must win back.
const PRIOR: f64 = 0.05;
/// First side of the simplex, in logarithms.
const SIDE: f64 = 0.1;

/// Fits the parameters called `names`, starting from `start`, to the step times of `rows`, in `rounds` steps. Names joined by a
/// `+` change by the same factor. `source` is noted beside each fitted number.
///
/// # Errors
/// A row cannot be predicted, or there is no such parameter.
pub fn fit(
    start: &Parameters,
    names: &[String],
    rows: &[Prepared],
    rounds: usize,
    source: &str,
) -> Result<Fitted, MeasurementError> {
    let base = serde_json::to_value(start).map_err(|e| fail("parameters", e.to_string()))?;
    let members = names.iter().enumerate().flat_map(|(i, joined)| joined.split('+').map(move |name| (i, name)));
    let members = members.map(|(i, name)| {
        let value = base[name]["value"].as_f64().filter(|v| *v > 0.0);
        value.map(|value| (i, name, value)).ok_or_else(|| unknown(start, &base, name))
    });
    let members: Vec<(usize, &str, f64)> = members.collect::<Result<_, _>>()?;
    let at = |point: &[f64]| -> Result<Parameters, MeasurementError> {
        let mut value = base.clone();
        for (i, name, start) in &members {
            value[*name]["value"] = Value::from(rounded(start * point[*i].exp()));
        }
        serde_json::from_value(value).map_err(|e| fail("parameters", e.to_string()))
    };
    let error = |point: &[f64]| -> Result<f64, MeasurementError> {
        let parameters = at(point)?;
        let mut sum = 0.0;
        let mut n = 0.0;
        for row in rows.iter().filter(|row| row.counts) {
            if let Some(measured) = row.step_seconds {
                sum += (row.predict_with(&parameters)?.step_seconds / measured).ln().abs();
                n += 1.0;
            }
        }
        Ok(if n > 0.0 { sum / n } else { 0.0 })
    };
    let held = |point: &[f64]| -> Result<f64, MeasurementError> {
        Ok(error(point)? + PRIOR * point.iter().map(|x| x * x).sum::<f64>() / point.len().max(1) as f64)
    };
    let origin = vec![0.0; names.len()];
    let best = simplex(&held, &origin, rounds)?;
    let mut parameters = serde_json::to_value(at(&best)?).map_err(|e| fail("parameters", e.to_string()))?;
    for (_, name, _) in &members {
        parameters[*name]["source"] = Value::from(source);
    }
    parameters["fitted_on"] = Value::from(source);
    let parameters = serde_json::from_value(parameters).map_err(|e| fail("parameters", e.to_string()))?;
    let found = |(i, name, start): &(usize, &str, f64)| ((*name).to_owned(), [*start, rounded(start * best[*i].exp())]);
    let values = members.iter().map(found).collect();
    Ok(Fitted { parameters, values, error: [error(&origin)?, error(&best)?] })
}

/// Four digits: no measurement tells more.
fn rounded(value: f64) -> f64 {
    format!("{value:.3e}").parse().unwrap_or(value)
}

fn unknown(start: &Parameters, base: &Value, name: &str) -> MeasurementError {
    let numbers = base.as_object().into_iter().flatten().filter(|(_, number)| number["value"].as_f64() > Some(0.0));
    let known: Vec<&str> = numbers.map(|(name, _)| name.as_str()).collect();
    MeasurementError::Parameter { name: name.to_owned(), stack: start.name.clone(), known: known.join(", ") }
}

fn fail(row: &str, message: String) -> MeasurementError {
    MeasurementError::Row { row: row.to_owned(), message }
}

type Point = Vec<f64>;

/// The best point that `rounds` steps of the simplex find.
fn simplex(
    value: &dyn Fn(&[f64]) -> Result<f64, MeasurementError>,
    origin: &[f64],
    rounds: usize,
) -> Result<Point, MeasurementError> {
    let mut corners: Vec<(f64, Point)> = vec![(value(origin)?, origin.to_vec())];
    for i in 0..origin.len() {
        let mut point = origin.to_vec();
        point[i] += SIDE;
        corners.push((value(&point)?, point));
    }
    for _ in 0..rounds {
        corners.sort_by(|a, b| a.0.total_cmp(&b.0));
        let Some((worst, rest)) = corners.split_last() else { break };
        let Some(second) = rest.last() else { break };
        let n = rest.len() as f64;
        let centre: Point = (0..origin.len()).map(|i| rest.iter().map(|(_, p)| p[i]).sum::<f64>() / n).collect();
        let along = |t: f64| -> Point { centre.iter().zip(&worst.1).map(|(c, w)| c + t * (c - w)).collect() };
        let of = |t: f64| -> Result<(f64, Point), MeasurementError> {
            let point = along(t);
            Ok((value(&point)?, point))
        };
        let reflected = of(1.0)?;
        let next = if reflected.0 < rest[0].0 {
            let expanded = of(2.0)?;
            if expanded.0 < reflected.0 { expanded } else { reflected }
        } else if reflected.0 < second.0 {
            reflected
        } else {
            let contracted = of(if reflected.0 < worst.0 { 0.5 } else { -0.5 })?;
            if contracted.0 < worst.0.min(reflected.0) {
                contracted
            } else {
                let best = rest[0].1.clone();
                for (error, point) in corners.iter_mut().skip(1) {
                    *point = point.iter().zip(&best).map(|(x, b)| f64::midpoint(*x, *b)).collect();
                    *error = value(point)?;
                }
                continue;
            }
        };
        if let Some(last) = corners.last_mut() {
            *last = next;
        }
    }
    corners.sort_by(|a, b| a.0.total_cmp(&b.0));
    Ok(corners.swap_remove(0).1)
}
