// SPDX-License-Identifier: Apache-2.0

// Package report turns a result file into what people read: a table for the
// terminal and one self-contained HTML page.
//
// It takes every figure from the file and computes none that the file does not
// carry, save for what is said about them: a difference whose interval holds
// 1.0, or that is smaller than the spread of the same thing measured twice, is
// called no difference, and under six rounds nothing is claimed at all.
package report

import (
	"errors"
	"fmt"
	"io"

	"mustang/internal/result"
)

// TableOptions are the ways to print a table. The zero value prints plain text
// of any width.
type TableOptions struct {
	// Wide adds percentiles, rounds and evidence to each row.
	Wide bool
	// Width is the terminal's width in columns: the least important columns of
	// a table are left out until it fits. 0 leaves out none.
	Width int
	// Color marks statuses and ties with ANSI colours.
	Color bool
}

// Table prints f to w as text: for each suite the question, an answer in words,
// the rows of each workload, a summary, the comparisons, and what was skipped or
// failed. Of several suites, rows and comparisons are printed only if wide ones
// are asked for. It returns the first error of w, or one that says that f is not
// a file of this schema.
func Table(w io.Writer, f result.File, o TableOptions) error {
	if err := check(f); err != nil {
		return err
	}
	p := &printer{w: w, options: o, view: newView(f)}
	p.head()
	if len(p.view.suites) == 0 {
		p.line("")
		p.line("This file holds no rows.")
	}
	for _, su := range p.view.suites {
		p.suite(su)
	}
	p.troubles()
	p.whereAll()
	if p.err != nil {
		return fmt.Errorf("print table: %w", p.err)
	}
	return nil
}

// HTML writes f to w as one HTML page that loads nothing else: styles and
// charts are inline, there is no script, and a content security policy forbids
// any request. Errors are those of [Table].
func HTML(w io.Writer, f result.File) error {
	if err := check(f); err != nil {
		return err
	}
	tmpl, err := parseTemplate()
	if err != nil {
		return fmt.Errorf("make report: %w", err)
	}
	if err := tmpl.Execute(w, newPage(newView(f))); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}

// check refuses files whose layout or figures can't be trusted.
func check(f result.File) error {
	if err := f.Validate(); err != nil {
		var schema *result.SchemaError
		if errors.As(err, &schema) {
			return err
		}
		return fmt.Errorf("check results: %w", err)
	}
	return nil
}
