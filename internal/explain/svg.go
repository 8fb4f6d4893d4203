// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"io"

	"mustang/internal/explain/steps"
	"mustang/internal/result"
)

// WriteSVG draws an explanation as an SVG document, see [steps.Draw].
func (e Explanation) WriteSVG(w io.Writer) error { return steps.Draw(w, e.drawing()) }

// WriteSVG draws both rows side by side.
func (c Comparison) WriteSVG(w io.Writer) error {
	return steps.Draw(w, c.Row.drawing(), c.Against.drawing())
}

// drawing returns what is drawn.
func (e Explanation) drawing() steps.Path {
	return steps.Path{Title: e.Suite + " " + e.Row, Note: steps.Note(e.Untraced, e.Clock, e.Alike), Clock: e.Clock, Steps: e.Steps}
}

// Result returns an explanation in nanoseconds as a result file has it.
func (e Explanation) Result() result.Trace {
	return result.Trace{
		Suite: e.Suite, ID: e.Row, Transactions: e.Transactions, Alike: e.Alike, UntracedNS: e.Untraced, Steps: e.Steps, Omitted: e.Omitted,
	}
}
