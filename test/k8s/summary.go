// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
)

// specRun is how the specs of a group ended in a set-up.
type specRun struct {
	// Setup is the link mode, the families and the nodes, such as veth/dual/one.
	Setup string `json:"setup"`
	Group string `json:"group"`
	// Date is the day, as 2006-01-02; Seconds is how long the specs took.
	Date    string `json:"date"`
	Seconds int    `json:"seconds"`
	// Passed is the number of passed specs. Failed maps failed specs to their message, Skipped specs that skip
	// themselves.
	Passed  int               `json:"passed"`
	Failed  map[string]string `json:"failed,omitempty"`
	Skipped map[string]string `json:"skipped,omitempty"`
}

// summary is how specs of one release of Kubernetes ended.
type summary struct {
	Kubernetes string `json:"kubernetes"`
	// Groups has the names of each group's specs, sorted.
	Groups map[string][]string `json:"groups"`
	// Causes are the reasons why specs fail, written by people.
	Causes map[string]string `json:"causes,omitempty"`
	Runs   []specRun         `json:"runs"`
}

// loadSummary reads a summary. One that does not exist is empty.
func loadSummary(path string) (summary, error) {
	s := summary{Groups: map[string][]string{}}
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err == nil {
		err = json.Unmarshal(data, &s)
	}
	if err != nil {
		err = fmt.Errorf("%s: %w", path, err)
	}
	return s, err
}

// save writes the summary.
func (s summary) save(path string) error {
	data, err := json.MarshalIndent(s, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(data, '\n'), 0o644)
}

// add adds a run of a group with these specs, in place of an earlier one of the same set-up. Of another release than
// the summary's, or of other specs of the group, it takes the place of all runs of that release or group.
func (s *summary) add(kubernetes string, names []string, run specRun) {
	if s.Kubernetes != kubernetes {
		s.Kubernetes, s.Runs, s.Groups = kubernetes, nil, map[string][]string{}
	}
	same := slices.Equal(s.Groups[run.Group], names)
	s.Runs = slices.DeleteFunc(s.Runs, func(r specRun) bool {
		return r.Group == run.Group &&
			(r.Setup == run.Setup || !same)
	})
	s.Groups[run.Group] = names
	s.Runs = append(s.Runs, run)
	slices.SortFunc(s.Runs, func(a, b specRun) int { return strings.Compare(a.Group+" "+a.Setup, b.Group+" "+b.Setup) })
}

// report is the part of ginkgo's report in a summary.
type report struct {
	RunTime     int64 // nanoseconds
	SpecReports []struct {
		ContainerHierarchyTexts []string
		LeafNodeType            string
		LeafNodeText            string
		State                   string
		NumAttempts             int
		Failure                 struct{ Message string }
	}
}

// readReport reads ginkgo's report in JSON: the names of the specs that were chosen, sorted, and how they ended.
func readReport(path string) (names []string, run specRun, err error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, specRun{}, err
	}
	var reports []report
	if err := json.Unmarshal(data, &reports); err != nil {
		return nil, specRun{}, fmt.Errorf("%s: %w", path, err)
	}
	run = specRun{Failed: map[string]string{}, Skipped: map[string]string{}}
	all := map[string]bool{}
	for _, r := range reports {
		run.Seconds += int(r.RunTime / 1e9)
		for _, spec := range r.SpecReports {
			name := strings.Join(append(spec.ContainerHierarchyTexts, spec.LeafNodeText), " ")
			failed := spec.State != "passed" && spec.State != "skipped" && spec.State != "pending"
			if spec.LeafNodeType != "It" {
				if failed { // of the suite itself
					run.Failed[spec.LeafNodeType] = first(spec.Failure.Message)
					all[spec.LeafNodeType] = true
				}
				continue
			}
			switch {
			case failed:
				run.Failed[name] = first(spec.Failure.Message)
			case spec.State == "passed":
				run.Passed++
			case spec.NumAttempts > 0: // it ran, and skipped itself
				run.Skipped[name] = first(spec.Failure.Message)
			default:
				continue // not chosen
			}
			all[name] = true
		}
	}
	return slices.Sorted(maps.Keys(all)), run, nil
}

// first returns the first line of a message.
func first(message string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(message), "\n")
	return strings.TrimSpace(line)
}
