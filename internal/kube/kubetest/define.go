// SPDX-License-Identifier: Apache-2.0

package kubetest

import (
	"encoding/json"
	"net/http"
	"strings"
)

// define answers with the definition of a kind, "things.example.org", at the versions that have had objects.
func (s *Server) define(w http.ResponseWriter, name string) {
	var versions []any
	s.mu.Lock()
	for list := range s.objects {
		parts := strings.Split(list, "/") // of /apis/GROUP/VERSION/RESOURCE
		if len(parts) == 5 && parts[4]+"."+parts[2] == name {
			versions = append(versions, map[string]any{"name": parts[3], "served": true})
		}
	}
	s.mu.Unlock()
	if versions == nil {
		fail(w, http.StatusNotFound, "NotFound", name)
		return
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"kind": "CustomResourceDefinition", "apiVersion": "apiextensions.k8s.io/v1", "spec": map[string]any{"versions": versions}})
}
