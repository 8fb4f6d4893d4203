// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"errors"
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

// Validate returns an error that names what a Kubernetes pod cannot have: a namespace, a name, or a label. The name may
// be empty.
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

func validateLabels(labels map[string]string) error {
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		if err := validateKey(key); err != nil {
			return fmt.Errorf("label %q: %w", key, err)
		}
		if value := labels[key]; value != "" && !isLabelText(value) {
			return fmt.Errorf("label %q: value %q: %w", key, value, errLabelText)
		}
	}
	return nil
}

// ValidateLabels returns an error that names an invalid label of a selector, which may be mistyped.
func (p *Policy) ValidateLabels() error {
	for s := range p.selectors {
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
			has := func(n NamedPort) bool {
				return n.Name == port.Name && (port.Protocol == 0 || n.Protocol == port.Protocol)
			}
			if port.Name != "" && !slices.ContainsFunc(pods, func(pod Pod) bool { return slices.ContainsFunc(pod.Ports, has) }) {
				names = append(names, port.Name)
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

var errLabelText = fmt.Errorf("want at most %d of letters, digits, -, _ and ., a letter or digit first and last",
	maxLabel)

// validateKey validates the key of a label: NAME or PREFIX/NAME.
func validateKey(key string) error {
	prefix, name, ok := strings.Cut(key, "/")
	if !ok {
		prefix, name = "", key
	}
	switch {
	case ok && !isSubdomain(prefix):
		return errors.New("the part before / is not the name of a domain")
	case !isLabelText(name):
		return errLabelText
	}
	return nil
}

// isLabel reports whether a text is a DNS label (RFC 1123) in lower case.
func isLabel(s string) bool {
	return len(s) <= maxLabel && !strings.Contains(s, ".") && isSubdomain(s)
}

// isSubdomain reports whether a text is a DNS subdomain (RFC 1123) in lower case. As in Kubernetes, its parts may be
// longer than labels.
func isSubdomain(s string) bool {
	if len(s) > maxSubdomain {
		return false
	}
	for part := range strings.SplitSeq(s, ".") {
		if strings.Contains(part, "_") || !isName(part) || part != strings.ToLower(part) {
			return false
		}
	}
	return true
}

// isLabelText reports whether a text may be the name of a label's key, or a value that is not empty.
func isLabelText(s string) bool { return len(s) <= maxLabel && isName(s) }

// isPortName reports whether a text is a service name (RFC 6335) in lower case, as for a container's port.
func isPortName(s string) bool {
	return len(s) <= maxPortName && isLabel(s) && !strings.Contains(s, "--") && strings.ContainsFunc(s, unicode.IsLetter)
}

// isName reports whether a text has letters and digits of ASCII, and -, _ and . only between them.
func isName(s string) bool {
	alphanumeric := func(b byte) bool { return b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' || b >= '0' && b <= '9' }
	for i := range len(s) {
		if inside := i > 0 && i < len(s)-1; !alphanumeric(s[i]) && !(inside && strings.IndexByte("-_.", s[i]) >= 0) {
			return false
		}
	}
	return s != ""
}
