// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"encoding/json"
	"errors"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"
)

const watchInterval = time.Second

// addYAML makes a command that prints JSON also print YAML, and one that lists also watch.
func (c *Config) addYAML(cmd *cobra.Command, list bool) {
	output := cmd.Flags().Lookup("output")
	if output == nil {
		return
	}
	if format, ok := output.Value.(*Parsed); !ok || !slices.Contains(format.words, "table") {
		return
	}
	var watch bool
	if list && cmd.Flags().Lookup("watch") == nil {
		cmd.Flags().BoolVarP(&watch, "watch", "w", false, "print again at each change, until Ctrl-C")
	}
	run := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		stdout, stderr := c.Stdout, c.Stderr
		defer func() { c.Stdout, c.Stderr = stdout, stderr }()
		if output.Value.String() == "yaml" {
			stdout = &yamlWriter{to: stdout}
			if err := output.Value.Set("json"); err != nil {
				return err
			}
		}
		for last := ""; ; {
			var out, notes strings.Builder
			if c.Stdout = stdout; watch {
				c.Stdout, c.Stderr = &out, &notes
			}
			err := run(cmd, args)
			if now := out.String() + notes.String(); now != last {
				_, outErr := io.WriteString(stdout, out.String())
				_, notesErr := io.WriteString(stderr, notes.String())
				last, err = now, errors.Join(err, outErr, notesErr)
			}
			if err != nil || !watch {
				return err
			}
			select {
			case <-cmd.Context().Done():
				return nil
			case <-time.After(watchInterval):
			}
		}
	}
}

// yamlWriter writes each JSON value as a YAML document with the same order of keys.
type yamlWriter struct {
	to    io.Writer
	value []byte // the beginning of a value
}

func (y *yamlWriter) Write(text []byte) (int, error) {
	if y.value = append(y.value, text...); !json.Valid(y.value) {
		return len(text), nil
	}
	var document yaml.Node
	err := yaml.Unmarshal(y.value, &document) // JSON is YAML
	if err != nil {
		return 0, err
	}
	asBlocks(&document)
	encoder := yaml.NewEncoder(y.to)
	encoder.SetIndent(2)
	_, err = io.WriteString(y.to, "---\n")
	y.value = nil
	return len(text), errors.Join(err, encoder.Encode(&document), encoder.Close())
}

func asBlocks(node *yaml.Node) {
	node.Style = 0
	for _, child := range node.Content {
		asBlocks(child)
	}
}
