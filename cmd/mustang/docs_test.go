// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"mustang/cmd/mustang/internal/cli"
	"mustang/internal/bench/suites"
	"mustang/internal/netns"
	"mustang/internal/podlink"
	"mustang/internal/result"
	"mustang/internal/service/manifest"
	"mustang/internal/testkit"
)

const (
	readme        = "../../README.md"
	tutorial      = "../../docs/tutorial.md"
	measuringPage = "../../docs/measuring.md"
	resultsPage   = "../../docs/results.md"
	explainPage   = "../../docs/explain.md"
	monitorPage   = "../../docs/monitor.md"
	labsPage      = "../../docs/labs.md"
	servicesPage  = "../../docs/services.md"
	policyPage    = "../../docs/policy.md"
	resultsSchema = "../../docs/results.schema.json"
)

// shellBlocks returns the lines of a page's ```sh blocks below a heading.
func shellBlocks(t *testing.T, page, heading string) []string {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	_, section, found := strings.Cut(string(text), "\n## "+heading+"\n")
	if !found {
		t.Fatalf("%s has no section %q", page, heading)
	}
	section, _, _ = strings.Cut(section, "\n## ")
	var lines []string
	for _, block := range regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllStringSubmatch(section, -1) {
		lines = append(lines, strings.Split(strings.TrimSpace(block[1]), "\n")...)
	}
	return lines
}

// TestTutorial runs the tutorial's commands as they stand there, and those of the page on labs.
func TestTutorial(t *testing.T) {
	testkit.RequireRoot(t)
	testkit.RequireTool(t, "iperf3")
	testkit.RequireTool(t, "ip")
	var script strings.Builder
	for _, section := range [][2]string{
		{tutorial, "Try it by hand"}, {tutorial, "Services for your own pods"}, {tutorial, "TUN"}, {labsPage, "BIG TCP"},
	} {
		for _, line := range shellBlocks(t, section[0], section[1]) {
			line, _, _ = strings.Cut(line, "  #")
			how := "exec "
			if strings.Contains(line, "iperf3 -c") {
				how = "retry " // the server was started a moment ago
			}
			script.WriteString(how + strings.TrimSpace(line) + "\n")
		}
	}
	if strings.Count(script.String(), "mustang") < 10 {
		t.Fatalf("hardly any commands found:\n%s", script.String())
	}
	t.Cleanup(func() {
		for _, name := range []string{"readme-host", "readme-web", "readme-client", "readme-tun"} {
			if err := netns.Delete(name); err != nil {
				t.Error(err)
			}
		}
	})
	runScript(t, script.String())
}

// TestServicesPage runs the commands of the page on services, with its file.
func TestServicesPage(t *testing.T) {
	testkit.RequireRoot(t)
	text, err := os.ReadFile(servicesPage)
	if err != nil {
		t.Fatal(err)
	}
	_, file, _ := strings.Cut(string(text), "```yaml\n")
	file, _, found := strings.Cut(file, "```\n")
	if !found {
		t.Fatal("the page has no file of services")
	}
	var script strings.Builder
	for _, section := range []string{"One service", "A set of services"} {
		for _, line := range shellBlocks(t, servicesPage, section) {
			command, says, _ := strings.Cut(line, "  # ")
			script.WriteString("exec " + command + "\n")
			if says == "nothing" {
				script.WriteString("! stdout .\n")
			}
		}
	}
	if strings.Count(script.String(), "mustang svc") != 9 {
		t.Fatalf("the commands are not those expected:\n%s", script.String())
	}
	runScript(t, script.String()+"-- services.yaml --\n"+file)
}

// TestLabsPage runs the commands of the page on labs with its file, which is one of the repository, and holds the page to the
// fields of such files.
func TestLabsPage(t *testing.T) {
	testkit.RequireRoot(t)
	testkit.RequireTool(t, "iperf3")
	text, err := os.ReadFile(labsPage)
	if err != nil {
		t.Fatal(err)
	}
	file, err := os.ReadFile("../../docs/two-racks.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(text), "```yaml\n"+string(file)+"```\n") {
		t.Error("the page has not the file docs/two-racks.yaml")
	}
	var script strings.Builder
	for _, line := range shellBlocks(t, labsPage, "Labs from a file") {
		line, _, _ = strings.Cut(line, "  #")
		how := "exec "
		if strings.Contains(line, "iperf3 -") && !strings.Contains(line, " -s ") {
			how = "retry " // the server was started a moment ago
		}
		script.WriteString(how + line + "\n")
	}
	if strings.Count(script.String(), "mustang") != 8 {
		t.Fatalf("the commands are not those expected:\n%s", script.String())
	}
	runScript(t, script.String()+"-- docs/two-racks.yaml --\n"+string(file))
}

// TestServicesPageHasTheFlags of svc add, and the fields of the file.
func TestServicesPageHasTheFlags(t *testing.T) {
	text, err := os.ReadFile(servicesPage)
	if err != nil {
		t.Fatal(err)
	}
	cmd, _, err := commandTree(cli.Environment{Getenv: func(string) string { return "" }}).Find([]string{"svc", "add"})
	if err != nil {
		t.Fatal(err)
	}
	cmd.LocalFlags().VisitAll(func(flag *pflag.Flag) {
		if !strings.Contains(string(text), "`--"+flag.Name+"`") {
			t.Errorf("%s lacks --%s", servicesPage, flag.Name)
		}
	})
	entry := reflect.TypeFor[manifest.Entry]()
	for i := range entry.NumField() {
		name, _, _ := strings.Cut(entry.Field(i).Tag.Get("json"), ",")
		if !strings.Contains(string(text), "\n| `"+name+"` |") {
			t.Errorf("%s lacks field %s", servicesPage, name)
		}
	}
}

// TestReadmeTargets holds README and CONTRIBUTING to the Makefile's targets.
func TestReadmeTargets(t *testing.T) {
	makefile, err := os.ReadFile("../../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for _, path := range []string{readme, "../../CONTRIBUTING.md"} {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, match := range regexp.MustCompile(`(?m)^ *make ([a-z]+)`).FindAllStringSubmatch(string(text), -1) {
			seen++
			if !regexp.MustCompile("(?m)^" + match[1] + ":").Match(makefile) {
				t.Errorf("%s: make %s: no such target", path, match[1])
			}
		}
	}
	if seen < 6 {
		t.Errorf("only %d make commands found", seen)
	}
}

// TestExamples holds the examples in the help texts, on the pages of measuring,
// the CNI plugin, of results, of explain and of monitor to the commands and flags that there are.
func TestExamples(t *testing.T) {
	e := cli.Environment{Getenv: func(string) string { return "" }}
	var lines []string
	var walk func(*cobra.Command)
	walk = func(cmd *cobra.Command) {
		lines = append(lines, strings.Split(cmd.Example, "\n")...)
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
	}
	walk(commandTree(e))
	lines = append(lines, shellBlocks(t, measuringPage, "Commands")...)
	lines = append(lines, shellBlocks(t, measuringPage, "Two machines")...)
	lines = append(lines, shellBlocks(t, cniPage, "Install")...)
	lines = append(lines, shellBlocks(t, resultsPage, "Commands")...)
	lines = append(lines, shellBlocks(t, explainPage, "Commands")...)
	lines = append(lines, shellBlocks(t, monitorPage, "Commands")...)
	lines = append(lines, shellBlocks(t, monitorPage, "Metrics for Prometheus")...)
	lines = append(lines, shellBlocks(t, servicesPage, "One service")...)
	lines = append(lines, shellBlocks(t, labsPage, "Labs from a file")...)
	seen := 0
	for _, line := range lines {
		line, _, _ = strings.Cut(line, "  #")
		if strings.TrimSpace(line) == "" {
			continue
		}
		seen++
		words, err := splitWords(line)
		if err != nil {
			t.Errorf("example %q: %v", line, err)
			continue
		}
		if words[0] != "mustang" {
			t.Errorf("example %q does not begin with mustang", line)
			continue
		}
		cmd, rest, err := commandTree(e).Find(words[1:])
		if err != nil || !cmd.Runnable() || cmd.HasSubCommands() && !strings.Contains(cmd.Use, " ") { // a group
			t.Errorf("example %q: %v", line, err)
			continue
		}
		if err := cmd.ParseFlags(rest); err != nil {
			t.Errorf("example %q: %v", line, err)
			continue
		}
		if err := cmd.ValidateArgs(cmd.Flags().Args()); err != nil {
			t.Errorf("example %q: %v", line, err)
		}
	}
	if seen < 10 {
		t.Errorf("only %d examples found", seen)
	}
}

// TestScenarios holds docs/scenarios.md to the rows that there are: each row of
// each suite is on the page, or the beginning of its ID is, and each ID there is a
// row's, or the beginning of one.
func TestScenarios(t *testing.T) {
	text, err := os.ReadFile("../../docs/scenarios.md")
	if err != nil {
		t.Fatal(err)
	}
	named := map[string]map[string]bool{}
	for _, section := range strings.Split(string(text), "\n## Suite ")[1:] {
		words := regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch("`"+strings.TrimPrefix(section, "`"), -1)
		suite := words[0][1]
		named[suite] = map[string]bool{}
		for _, row := range regexp.MustCompile(`(?m)^\|.*\|(.*)\|$`).FindAllStringSubmatch(section, -1) {
			for _, id := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(row[1], -1) {
				named[suite][id[1]] = false
			}
		}
	}
	for _, suite := range suites.List() {
		for _, row := range suite.Rows() {
			found := false
			for id := range named[suite.Name] {
				if row.ID == id || strings.HasPrefix(row.ID, id+"/") || id == result.ViaEBPFSocket && strings.HasSuffix(row.ID, "/"+id) {
					named[suite.Name][id], found = true, true
				}
			}
			if !found {
				t.Errorf("row %s of suite %s is not in docs/scenarios.md", row.ID, suite.Name)
			}
		}
		for id, found := range named[suite.Name] {
			if !found {
				t.Errorf("docs/scenarios.md: suite %s has no row %s", suite.Name, id)
			}
		}
	}
}

// TestScenariosListUsualRows holds the table of usual rows in docs/scenarios.md to the rows that suite pod-links measures
// without --all.
func TestScenariosListUsualRows(t *testing.T) {
	text, err := os.ReadFile("../../docs/scenarios.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(text), "\nA run measures the usual rows:\n")
	table, _, found := strings.Cut(table, "\n`--all` measures all rows")
	if !found {
		t.Fatal("docs/scenarios.md has no table of usual rows")
	}
	var named, usual []string
	for _, id := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(table, -1) {
		named = append(named, id[1])
	}
	list, err := suites.Lookup(suites.Default)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range list[0].Paths {
		if !p.Extra {
			usual = append(usual, p.ID)
		}
	}
	slices.Sort(named)
	slices.Sort(usual)
	if !slices.Equal(named, usual) {
		t.Errorf("docs/scenarios.md has the usual rows\n%q, want\n%q", named, usual)
	}
}

// TestHelp holds every command to a line that says what it does.
func TestHelp(t *testing.T) {
	e := cli.Environment{Getenv: func(string) string { return "" }}
	var walk func(*cobra.Command)
	walk = func(cmd *cobra.Command) {
		if cmd.Short == "" {
			t.Errorf("%s has no help", cmd.CommandPath())
		}
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
	}
	walk(commandTree(e))
}

// TestPolicyPage runs the first example of the page on policies.
func TestPolicyPage(t *testing.T) {
	testkit.RequireRoot(t)
	testkit.RequireTool(t, "busybox")
	runPolicyPage(t, "Three pods on a bridge and a policy", 1, "db.yaml")
}

// TestPolicyPageIpvlan runs the commands of the page on policies with which root of a pod tries to get past one.
func TestPolicyPageIpvlan(t *testing.T) {
	testkit.RequireRoot(t)
	mode, err := podlink.Lookup("ipvlan-l2")
	if err != nil {
		t.Fatal(err)
	}
	testkit.RequireMode(t, mode.Probe())
	testkit.RequireTool(t, "busybox")
	testkit.RequireTool(t, "tc")
	runPolicyPage(t, "Two ipvlan pods of one host", 6, "nobody.yaml")
}

// runPolicyPage runs the commands of a section, of which so many fail, with the section's policies in a file.
func runPolicyPage(t *testing.T, heading string, failing int, file string) {
	t.Helper()
	var script strings.Builder
	namespaces := []string{}
	for _, line := range shellBlocks(t, policyPage, heading) {
		command, says, _ := strings.Cut(line, "  # ")
		if says == "fails" {
			script.WriteString("! ")
		}
		if name, ok := strings.CutPrefix(command, "ip netns add "); ok {
			namespaces = append(namespaces, name)
		}
		script.WriteString("exec " + strings.Replace(command, " ping ", " busybox ping ", 1) + "\n")
	}
	if strings.Count(script.String(), "! exec ") != failing {
		t.Fatalf("the commands are not those expected:\n%s", script.String())
	}
	text, err := os.ReadFile(policyPage)
	if err != nil {
		t.Fatal(err)
	}
	_, policies, _ := strings.Cut(string(text), "\n## "+heading+"\n")
	_, policies, _ = strings.Cut(policies, "```yaml\n")
	policies, _, _ = strings.Cut(policies, "```\n")
	t.Cleanup(func() {
		for _, name := range namespaces {
			if err := netns.Delete(name); err != nil {
				t.Error(err)
			}
		}
	})
	runScript(t, script.String()+"-- "+file+" --\n"+policies)
}
