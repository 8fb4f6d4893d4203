// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"
	"golang.org/x/sys/unix"
)

const watchInterval = time.Second

// addYAML adds -o yaml to a command with -o json, and --watch to a command ls.
func (c *Config) addYAML(cmd *cobra.Command) {
	output := cmd.Flags().Lookup("output")
	if output == nil {
		return
	}
	if format, ok := output.Value.(*Parsed); !ok || !slices.Contains(format.words, "table") {
		return
	}
	var watch bool
	if cmd.Name() == "ls" {
		cmd.Flags().BoolVarP(&watch, "watch", "w", false, "print again at each change, until Ctrl-C or an error")
	}
	run := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		stdout, stderr := c.Stdout, c.Stderr
		defer func() { c.Stdout, c.Stderr = stdout, stderr }()
		if output.Value.String() == "yaml" {
			c.Stdout = &yamlWriter{to: stdout}
			if err := output.Value.Set("json"); err != nil {
				return err
			}
		}
		if watch {
			return c.watch(cmd.Context(), stdout, func() error { return run(cmd, args) })
		}
		return run(cmd, args)
	}
}

// watch runs a command each second, and prints its output if that has changed. It ends without a reader of the pipe.
func (c *Config) watch(ctx context.Context, pipe io.Writer, run func() error) error {
	stdout, stderr, last := c.Stdout, c.Stderr, ""
	for {
		var out, notes strings.Builder
		c.Stdout, c.Stderr = &out, &notes
		err := run()
		if now := out.String() + notes.String(); now != last {
			_, outErr := io.WriteString(stdout, out.String())
			_, notesErr := io.WriteString(stderr, notes.String())
			last, err = now, errors.Join(err, outErr, notesErr)
		}
		if err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(watchInterval):
		}
		if file, ok := pipe.(*os.File); ok {
			if n, _ := unix.Poll([]unix.PollFd{{Fd: int32(file.Fd())}}, 0); n > 0 { // POLLERR
				return nil
			}
		}
	}
}

// yamlWriter writes each JSON value as a YAML document with the same order of keys.
type yamlWriter struct {
	to   io.Writer
	rest []byte // the beginning of a value
}

func (y *yamlWriter) Write(text []byte) (int, error) {
	y.rest = append(y.rest, text...)
	for {
		var value json.RawMessage
		decoder := json.NewDecoder(bytes.NewReader(y.rest))
		switch err := decoder.Decode(&value); {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			return len(text), nil
		case err != nil:
			return 0, err
		}
		y.rest = y.rest[decoder.InputOffset():]
		if err := y.document(value); err != nil {
			return 0, err
		}
	}
}

func (y *yamlWriter) document(value []byte) error {
	var document yaml.Node
	if err := yaml.Unmarshal(value, &document); err != nil { // JSON is YAML
		return err
	}
	asBlocks(&document)
	if _, err := io.WriteString(y.to, "---\n"); err != nil {
		return err
	}
	encoder := yaml.NewEncoder(y.to)
	encoder.SetIndent(2)
	return errors.Join(encoder.Encode(&document), encoder.Close())
}

// asBlocks clears the style of JSON, except for strings that YAML 1.1 reads as booleans.
func asBlocks(node *yaml.Node) {
	if !slices.Contains([]string{"y", "n", "yes", "no", "on", "off"}, strings.ToLower(node.Value)) {
		node.Style = 0
	}
	for _, child := range node.Content {
		asBlocks(child)
	}
}
