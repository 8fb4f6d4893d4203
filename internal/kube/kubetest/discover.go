// SPDX-License-Identifier: Apache-2.0

package kubetest

import (
	"encoding/json"
	"net/http"
	"regexp"
	"strings"
)

// version is the path of what there is in a version of a group.
var version = regexp.MustCompile(`^/apis/[^/]+/[^/]+$`)

// discover lists the groups and versions that have had objects, or the resources of one.
func (s *Server) discover(w http.ResponseWriter, path string) {
	groups, resources := []any{map[string]any{"name": "apps", "versions": []any{map[string]any{"groupVersion": "apps/v1", "version": "v1"}}}}, []any{}
	s.mu.Lock()
	defer s.mu.Unlock()
	for list := range s.objects {
		parts := strings.Split(list, "/") // of /apis/GROUP/VERSION/RESOURCE
		if len(parts) != 5 || parts[1] != "apis" {
			continue
		}
		groups = append(groups, map[string]any{"name": parts[2], "versions": []any{map[string]any{"groupVersion": parts[2] + "/" + parts[3], "version": parts[3]}}})
		if strings.HasPrefix(list, path+"/") {
			resources = append(resources, map[string]any{"name": parts[4]})
		}
	}
	if path == "/apis" {
		_ = json.NewEncoder(w).Encode(map[string]any{"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
		return
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"kind": "APIResourceList", "apiVersion": "v1", "resources": resources})
}
