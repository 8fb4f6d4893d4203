// SPDX-License-Identifier: Apache-2.0

package result

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"mustang/internal/testkit"
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
		testkit.Succeed(t, os.WriteFile(path, []byte(tt.text), 0o600))
		_, err := Read(path)
		testkit.Check(t, err != nil && strings.Contains(err.Error(), tt.want) && strings.Contains(err.Error(), path),
			"%s: %v, want %q in it", name, err, tt.want)
	}
	_, err := Read(filepath.Join(t.TempDir(), "none"))
	testkit.Check(t, errors.Is(err, os.ErrNotExist), "missing file: %v", err)
}
