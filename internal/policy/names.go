// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode"
)

// Lengths of names in Kubernetes.
const (
	maxLabel     = 63  // of RFC 1123, and of a label's name and value
	maxSubdomain = 253 // of RFC 1123
	maxPortName  = 15  // of RFC 6335
)

// Validate returns an error that names a namespace, a name or a label that no pod can have. The name may be empty.
func (p *Pod) Validate() error {
	switch {
	case !isLabel(p.Namespace):
		return fmt.Errorf("namespace %q: want at most %d of a to z, 0 to 9 and -, a letter or digit first and last",
			p.Namespace, maxLabel)
	case p.Name != "" && !isSubdomain(p.Name):
		return fmt.Errorf("pod %q: want at most %d of a to z, 0 to 9, - and ., a letter or digit first and last in each part",
			p.Name, maxSubdomain)
	}
	return validateLabels(p.Labels)
}

var errLabelText = fmt.Errorf("want at most %d of letters, digits, -, _ and ., a letter or digit first and last",
	maxLabel)

func validateLabels(labels map[string]string) error {
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		prefix, name, prefixed := strings.Cut(key, "/")
		if !prefixed {
			name = key
		}
		switch value := labels[key]; {
		case prefixed && !isSubdomain(prefix):
			return fmt.Errorf("label %q: the part before / is not the name of a domain", key)
		case !isLabelText(name):
			return fmt.Errorf("label %q: %w", key, errLabelText)
		case value != "" && !isLabelText(value):
			return fmt.Errorf("label %q: value %q: %w", key, value, errLabelText)
		}
	}
	return nil
}

// ValidateLabels returns an error that names an invalid label of a selector, which may be mistyped.
func (p *Policy) ValidateLabels() error {
	for _, s := range p.selectors {
		err := validateLabels(s.Labels)
		for _, r := range s.Requirements {
			for _, value := range append(r.Values, "") {
				err = cmp.Or(err, validateLabels(map[string]string{r.Key: value}))
			}
		}
		if err != nil {
			return fmt.Errorf("selector: %w", err)
		}
	}
	return nil
}

// MissingPorts returns the names of ports in the policy that no pod has, sorted.
func (p *Policy) MissingPorts(pods []Pod) (names []string) {
	for _, r := range p.allRules {
		for _, port := range r.Ports {
			has := func(pod Pod) bool { return slices.ContainsFunc(pod.Ports, port.isNamed) }
			if port.Name != "" && !slices.ContainsFunc(pods, has) {
				names = append(names, port.Name)
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// isLabel reports whether a text is a DNS label (RFC 1123) in lower case.
func isLabel(s string) bool { return len(s) <= maxLabel && isName(s, "-", false) }

// isSubdomain reports whether a text is a DNS subdomain in lower case, with parts of any length as in Kubernetes.
func isSubdomain(s string) bool {
	invalid := func(part string) bool { return !isName(part, "-", false) }
	return len(s) <= maxSubdomain && !slices.ContainsFunc(strings.Split(s, "."), invalid)
}

// isLabelText reports whether a text may be the name of a label's key, or a value that is not empty.
func isLabelText(s string) bool { return len(s) <= maxLabel && isName(s, "-_.", true) }

// isPortName reports whether a text is a service name (RFC 6335) in lower case, as for a container's port.
func isPortName(s string) bool {
	return len(s) <= maxPortName && isLabel(s) && !strings.Contains(s, "--") && strings.ContainsFunc(s, unicode.IsLetter)
}

// isName reports whether a text has letters and digits of ASCII, and the bytes inside only between them.
func isName(s, inside string, upper bool) bool {
	for i, b := range []byte(s) {
		alphanumeric := b >= 'a' && b <= 'z' || b >= '0' && b <= '9' || upper && b >= 'A' && b <= 'Z'
		if !alphanumeric && (i == 0 || i == len(s)-1 || strings.IndexByte(inside, b) < 0) {
			return false
		}
	}
	return s != ""
}
