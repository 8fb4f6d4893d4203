// SPDX-License-Identifier: Apache-2.0

package kubetest

import (
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// event is a change of an object: nil before it was made, and after it was deleted.
type event struct {
	version  int
	was, now map[string]any
}

// selected reports whether the field selector of a request selects an object; nil: it does not.
func selected(r *http.Request, o map[string]any) bool {
	text := r.URL.Query().Get("fieldSelector")
	for term := range strings.SplitSeq(text, ",") {
		path, value, _ := strings.Cut(term, "=")
		path, unlike := strings.CutSuffix(path, "!")
		at := o
		names := strings.Split(path, ".")
		for _, name := range names[:len(names)-1] {
			at, _ = at[name].(map[string]any)
		}
		if has, _ := at[names[len(names)-1]].(string); text != "" && (has == value) == unlike {
			return false
		}
	}
	meta, _ := o["metadata"].(map[string]any)
	labels, _ := meta["labels"].(map[string]any)
	for term := range strings.SplitSeq(r.URL.Query().Get("labelSelector"), ",") {
		key, absent := strings.CutPrefix(term, "!")
		if _, has := labels[key]; absent && has {
			return false
		}
	}
	return o != nil
}

// watch sends changes and, if it is asked for, first all objects and a bookmark.
func (s *Server) watch(w http.ResponseWriter, r *http.Request) {
	query, list := r.URL.Query(), r.URL.Path
	of, version := typeOf(list)
	seen, _ := strconv.Atoi(query.Get("resourceVersion"))
	send := func(kind string, o map[string]any) {
		_ = json.NewEncoder(w).Encode(map[string]any{"type": kind,
			"object": merged(o, map[string]any{"kind": of, "apiVersion": version})})
	}
	if query.Get("sendInitialEvents") == "true" {
		if s.ListsOnly {
			fail(w, http.StatusUnprocessableEntity, "Invalid", "")
			return
		}
		s.mu.Lock()
		seen = s.version
		all := slices.Collect(maps.Values(s.objects[list]))
		s.mu.Unlock()
		for _, o := range all {
			if o := o.(map[string]any); selected(r, o) {
				send("ADDED", o)
			}
		}
		send("BOOKMARK", map[string]any{"metadata": map[string]any{"resourceVersion": strconv.Itoa(seen),
			"annotations": map[string]any{"k8s.io/initial-events-end": "true"}}})
	}
	for begun := false; ; begun = true {
		s.mu.Lock()
		gone, changed := seen < s.oldest, s.changed
		news := slices.DeleteFunc(slices.Clone(s.events[list]), func(e event) bool { return e.version <= seen })
		s.mu.Unlock()
		if gone {
			if !begun {
				fail(w, http.StatusGone, "Expired", "")
			}
			return
		}
		for _, e := range news {
			seen = e.version
			switch was, is := selected(r, e.was), selected(r, e.now); {
			case was && is:
				send("MODIFIED", e.now)
			case was:
				send("DELETED", e.was)
			case is:
				send("ADDED", e.now)
			}
		}
		w.(http.Flusher).Flush()
		select {
		case <-changed:
		case <-s.stopped:
			return
		case <-r.Context().Done():
			return
		}
	}
}
