// SPDX-License-Identifier: Apache-2.0

package kubetest

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"
)

// one gets, creates, changes or deletes an object.
func (s *Server) one(w http.ResponseWriter, r *http.Request, list, key string) {
	s.writing.Lock()
	defer s.writing.Unlock()
	var sent map[string]any
	creates := r.Method == http.MethodPost
	if creates || r.Method == http.MethodPatch || r.Method == http.MethodPut {
		_ = json.NewDecoder(r.Body).Decode(&sent)
	}
	if creates {
		key += fmt.Sprint(sent["metadata"].(map[string]any)["name"])
	}
	_, name, _ := strings.Cut(key, "/")
	s.mu.Lock()
	o, known := s.objects[list][key].(map[string]any)
	s.mu.Unlock()
	switch {
	case creates && known:
		fail(w, http.StatusConflict, "AlreadyExists", name)
		return
	case creates:
		o = sent
		o["metadata"].(map[string]any)["creationTimestamp"] = time.Now().UTC().Format(time.RFC3339)
		if s.created != nil {
			s.created(list, o)
		}
		o = s.change(list, o, false)
		w.WriteHeader(http.StatusCreated)
	case !known:
		fail(w, http.StatusNotFound, "NotFound", name)
		return
	case sent != nil && outdated(o, sent):
		fail(w, http.StatusConflict, "Conflict", name)
		return
	case r.Method == http.MethodPatch:
		o = s.change(list, merged(o, sent), false)
	case r.Method == http.MethodPut:
		o = s.change(list, sent, false)
	case r.Method == http.MethodDelete:
		if list == "/api/v1/namespaces" {
			s.empty(name)
		}
		s.change(list, o, true)
	}
	_ = json.NewEncoder(w).Encode(o)
}

// outdated reports whether a change is of another version of an object than the stored one.
func outdated(o, change map[string]any) bool {
	meta, _ := change["metadata"].(map[string]any)
	version, _ := meta["resourceVersion"].(string)
	return version != "" && version != o["metadata"].(map[string]any)["resourceVersion"]
}

// merged returns an object with a patch (RFC 7386). Conditions are merged by their types.
func merged(had, patch map[string]any) map[string]any {
	out := map[string]any{}
	maps.Copy(out, had)
	for name, value := range patch {
		inner, is := value.(map[string]any)
		switch {
		case value == nil:
			delete(out, name)
		case is:
			before, _ := out[name].(map[string]any)
			out[name] = merged(before, inner)
		case name == "conditions":
			before, _ := out[name].([]any)
			out[name] = append(slices.DeleteFunc(slices.Clone(before), func(c any) bool {
				return slices.ContainsFunc(value.([]any), func(d any) bool { return typeOfCondition(c) == typeOfCondition(d) })
			}), value.([]any)...)
		default:
			out[name] = value
		}
	}
	return out
}

func typeOfCondition(c any) any { return c.(map[string]any)["type"] }

func (s *Server) empty(namespace string) {
	s.mu.Lock()
	found := map[string][]any{}
	for list, objects := range s.objects {
		for key, o := range objects {
			if strings.HasPrefix(key, namespace+"/") {
				found[list] = append(found[list], o)
			}
		}
	}
	s.mu.Unlock()
	for list, objects := range found {
		for _, o := range objects {
			s.change(list, o.(map[string]any), true)
		}
	}
}
