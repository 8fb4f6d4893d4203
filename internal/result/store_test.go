// SPDX-License-Identifier: Apache-2.0

package result

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestReadErrors(t *testing.T) {
	for name, tt := range map[string]struct{ text, want string }{
		"other schema": {`{"schema":3,"rows":{"new":"layout"}}`, "unknown schema 3 (this program reads 2)"},
		"old schema":   {`{"schema":1,"rows":[]}`, "unknown schema 1"},
		"no schema":    {`{"rows":[]}`, "no schema number"},
		"half a file":  {`{"schema":2,"rows":[`, "unexpected end"},
		"wrong type":   {`{"schema":2,"rows":7}`, "rows"},
		"bad row":      {`{"schema":2,"rows":[{"id":"a"}]}`, `row 0 (a ): datapath "" is none of kernel, ebpf`},
	} {
		path := filepath.Join(t.TempDir(), "results.json")
		if err := os.WriteFile(path, []byte(tt.text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := Read(path)
		if err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v, want %q in it", name, err, tt.want)
		}
	}
	if _, err := Read(filepath.Join(t.TempDir(), "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("missing file: %v", err)
	}
}
