// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"mustang/internal/service"
)

// WriteDiff writes changes for people: a line that begins with +, - or ~ for each service, followed by its changed
// fields and backends.
func WriteDiff(w io.Writer, c service.Changes) error {
	out := bufio.NewWriter(w)
	for _, s := range sorted(c.Delete) {
		fmt.Fprintf(out, "- %s\n", s)
	}
	for _, u := range c.Update {
		fmt.Fprintf(out, "~ %s\n", u.Want)
		fields, err := fieldChanges(NewEntry(u.Have), NewEntry(u.Want))
		if err != nil {
			return err
		}
		for _, line := range slices.Concat(fields, backendChanges(u.Have.Backends, u.Want.Backends)) {
			fmt.Fprintf(out, "    %s\n", line)
		}
	}
	for _, s := range sorted(c.Add) {
		fmt.Fprintf(out, "+ %s\n", s)
		for _, line := range backendChanges(nil, s.Backends) {
			fmt.Fprintf(out, "    %s\n", line)
		}
	}
	return out.Flush()
}

// fieldChanges returns a line for each changed field except the backends.
func fieldChanges(have, want Entry) (lines []string, err error) {
	var fields [2]map[string]jsontext.Value
	for i, e := range []Entry{have, want} {
		e.Backends = nil
		data, err := json.Marshal(e)
		if err == nil {
			err = json.Unmarshal(data, &fields[i])
		}
		if err != nil {
			return nil, err
		}
	}
	all := maps.Clone(fields[0])
	maps.Copy(all, fields[1])
	for _, name := range slices.Sorted(maps.Keys(all)) {
		old, fresh := cmp.Or(string(fields[0][name]), "default"), cmp.Or(string(fields[1][name]), "default")
		if old != fresh {
			lines = append(lines, fmt.Sprintf("%s: %s -> %s", name, old, fresh))
		}
	}
	return lines, nil
}

// backendChanges returns a line for each removed or added backend. Another state or weight counts as both.
func backendChanges(have, want []service.Backend) []string {
	removed, added := map[string]bool{}, map[string]bool{}
	for _, b := range have {
		removed["- backend "+b.String()] = true
	}
	for _, b := range want {
		if text := b.String(); removed["- backend "+text] {
			delete(removed, "- backend "+text)
		} else {
			added["+ backend "+text] = true
		}
	}
	return append(slices.Sorted(maps.Keys(removed)), slices.Sorted(maps.Keys(added))...)
}
