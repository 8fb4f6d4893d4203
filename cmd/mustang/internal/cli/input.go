// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"
	"io"
	"os"
)

// StandardInput is the path that stands for standard input.
const StandardInput = "-"

// InputName names a file of the command line in messages.
func InputName(path string) string {
	if path == StandardInput {
		return "standard input"
	}
	return path
}

// ReadInput reads a file of the command line, or standard input. It waits for a terminal or a pipe until ctx ends.
func ReadInput[T any](ctx context.Context, e Environment, path string, read func(io.Reader) (T, error)) (T, error) {
	var value, none T
	err := Interruptible(ctx, func() (err error) {
		in := e.Stdin
		if path != StandardInput {
			file, err := os.Open(path)
			if err != nil {
				return err
			}
			defer file.Close()
			in = file
		}
		value, err = read(in)
		return err
	})
	if ctx.Err() != nil { // the function may set the value still
		return none, fmt.Errorf("%s: %w", InputName(path), ctx.Err())
	}
	return value, err
}

// Interruptible calls a function that needs no undo, and returns when the context ends even if the function has not.
func Interruptible(ctx context.Context, do func() error) error {
	done := make(chan error, 1)
	go func() { done <- do() }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}
