// SPDX-License-Identifier: Apache-2.0

package kubetest

import (
	"encoding/json"
	"maps"
	"net/http"
	"strings"
	"time"
)

// Created makes the server call on for each object that a client creates in a namespace, before it stores it: on may change it,
// as an API server, and put others, as a controller.
func (s *Server) Created(on func(list string, object map[string]any)) { s.created = on }

// space creates, gets, patches or deletes a namespace, and with it what is in it.
func (s *Server) space(w http.ResponseWriter, r *http.Request) {
	const list = "/api/v1/namespaces"
	name := strings.Trim(strings.TrimPrefix(r.URL.Path, list), "/")
	var o map[string]any
	if r.Method == http.MethodPost || r.Method == http.MethodPatch {
		if err := json.NewDecoder(r.Body).Decode(&o); err != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
	}
	s.mu.Lock()
	had, known := s.objects[list]["<nil>/"+name].(map[string]any)
	s.mu.Unlock()
	switch {
	case r.Method == http.MethodPost:
		o["metadata"].(map[string]any)["creationTimestamp"] = time.Now().UTC().Format(time.RFC3339)
	case !known:
		fail(w, http.StatusNotFound, "NotFound", name)
		return
	case r.Method == http.MethodDelete:
		s.empty(name)
		s.Delete(list, "", name)
		o = had
	case r.Method == http.MethodPatch:
		meta := maps.Clone(had["metadata"].(map[string]any))
		meta["annotations"] = o["metadata"].(map[string]any)["annotations"]
		o = maps.Clone(had)
		o["metadata"] = meta
	default:
		o = had
	}
	if r.Method == http.MethodPost || r.Method == http.MethodPatch {
		s.change(list, o, "")
	}
	_ = json.NewEncoder(w).Encode(o)
}

// empty deletes the objects of a namespace.
func (s *Server) empty(namespace string) {
	s.mu.Lock()
	found := map[string][]string{}
	for list, objects := range s.objects {
		for key := range objects {
			if name, ok := strings.CutPrefix(key, namespace+"/"); ok {
				found[list] = append(found[list], name)
			}
		}
	}
	s.mu.Unlock()
	for list, names := range found {
		for _, name := range names {
			s.Delete(list, namespace, name)
		}
	}
}
