// SPDX-License-Identifier: Apache-2.0

package podlink

import (
	"encoding/json"
	"fmt"
	"strings"
)

// ovsdbSet is a column with any number of values, which are strings, numbers,
// booleans or UUIDs (RFC 7047, section 5.1). A set of one may come as the value
// alone.
type ovsdbSet []string

// UnmarshalJSON implements json.Unmarshaler.
func (s *ovsdbSet) UnmarshalJSON(data []byte) error {
	var tagged []json.RawMessage
	if json.Unmarshal(data, &tagged) != nil {
		*s = ovsdbSet{atom(data)}
		return nil
	}
	if len(tagged) != 2 {
		return fmt.Errorf("%s is not a value of a database", data)
	}
	if atom(tagged[0]) != "set" { // a UUID
		*s = ovsdbSet{atom(tagged[1])}
		return nil
	}
	var members []ovsdbSet
	if err := json.Unmarshal(tagged[1], &members); err != nil {
		return err
	}
	*s = ovsdbSet{}
	for _, member := range members {
		*s = append(*s, member...)
	}
	return nil
}

// first is the only value of a column that may have none.
func (s ovsdbSet) first() string {
	if len(s) == 0 {
		return ""
	}
	return s[0]
}

// ovsdbMap is a column with pairs of strings.
type ovsdbMap map[string]string

// UnmarshalJSON implements json.Unmarshaler.
func (m *ovsdbMap) UnmarshalJSON(data []byte) error {
	var tag string
	var pairs [][2]string
	if err := json.Unmarshal(data, &[]any{&tag, &pairs}); err != nil {
		return err
	}
	*m = ovsdbMap{}
	for _, pair := range pairs {
		(*m)[pair[0]] = pair[1]
	}
	return nil
}

// MarshalJSON implements json.Marshaler.
func (m ovsdbMap) MarshalJSON() ([]byte, error) {
	pairs := [][2]string{}
	for key, value := range m {
		pairs = append(pairs, [2]string{key, value})
	}
	return json.Marshal([]any{"map", pairs})
}

// atom is a string without its quotes, or a number or boolean as it is written.
func atom(data []byte) string {
	var text string
	if json.Unmarshal(data, &text) == nil {
		return text
	}
	return strings.TrimSpace(string(data))
}

// where is the condition that all of the conditions hold; each is made by is.
func where(conditions ...any) []any { return append([]any{}, conditions...) }

// is is the condition that a column has a value.
func is(column string, value any) []any { return []any{column, "==", value} }

// uuid stands for a row, named for one that the same transaction inserts.
func uuid(id string) []string    { return []string{"uuid", id} }
func named(name string) []string { return []string{"named-uuid", name} }
