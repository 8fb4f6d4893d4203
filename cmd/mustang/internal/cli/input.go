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

// ReadInput reads a file of the command line, or standard input. It waits for a terminal or a pipe no longer than ctx lasts.
func ReadInput[T any](ctx context.Context, e Environment, path string, read func(io.Reader) (T, error)) (T, error) {
	type result struct {
		value T
		err   error
	}
	done := make(chan result, 1)
	go func() {
		value, err := readInput(e, path, read)
		done <- result{value, err}
	}()
	select {
	case r := <-done:
		return r.value, r.err
	case <-ctx.Done():
		var none T
		return none, fmt.Errorf("%s: interrupted", InputName(path))
	}
}

func readInput[T any](e Environment, path string, read func(io.Reader) (T, error)) (T, error) {
	if path == StandardInput {
		return read(e.Stdin)
	}
	file, err := os.Open(path)
	if err != nil {
		var none T
		return none, err
	}
	defer file.Close()
	return read(file)
}
