// SPDX-License-Identifier: Apache-2.0

package install

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"mustang/internal/cni"
)

// Where runtimes look if nobody told them otherwise.
const (
	DefaultBinDir   = "/opt/cni/bin"
	DefaultConfDir  = "/etc/cni/net.d"
	DefaultConfName = "10-mustang.conflist"
)

// Place is where a runtime looks.
type Place struct {
	// BinDir has the plugins, ConfDir the configurations.
	BinDir, ConfDir string
	// ConfName is the configuration's name in ConfDir. Runtimes take the first by name.
	ConfName string

	after func(step string) error // called by tests
}

// Change is what became of a file.
type Change struct {
	// What is "plugin" or "conflist", Path where it is.
	What, Path string
	// Done is "written", "replaced", "unchanged", "removed", "absent" or "left".
	Done string
}

// String is a line for people.
func (c Change) String() string { return fmt.Sprintf("%s %s %s", c.What, c.Path, c.Done) }

const (
	whatPlugin   = "plugin"
	whatConflist = "conflist"
)

// Check judges the place. The error names what is wrong with it.
func (p Place) Check() error {
	switch {
	case p.BinDir == "":
		return errors.New("the directory of plugins has no name")
	case p.ConfDir == "":
		return errors.New("the directory of configurations has no name")
	case filepath.Ext(p.ConfName) != ".conflist" || strings.HasPrefix(p.ConfName, ".") || filepath.Base(p.ConfName) != p.ConfName:
		return fmt.Errorf("name of the configuration %q: want a file's name that ends in .conflist", p.ConfName)
	}
	return nil
}

// Conf is the path of the configuration.
func (p Place) Conf() string { return filepath.Join(p.ConfDir, p.ConfName) }

func (p Place) plugin() *file {
	return &file{path: filepath.Join(p.BinDir, cni.PluginType), mode: 0o755, foreign: foreignPlugin}
}

func (p Place) conflist() *file {
	return &file{path: p.Conf(), mode: 0o644, foreign: foreignList}
}

// Install copies the plugin from a path and writes the configuration, in that
// order. What is there and not ours is replaced only by force; the error is a
// [ForeignError] then. If it fails, it has undone all that it did.
func (p Place) Install(from string, conflist []byte, force bool) (changes []Change, err error) {
	plugin, conf := p.plugin(), p.conflist()
	conf.content = conflist
	if plugin.content, err = readPlugin(from); err != nil {
		return nil, err
	}
	for _, dir := range []string{p.BinDir, p.ConfDir} {
		var made []string
		if made, err = makeDir(dir); err != nil {
			return nil, err
		}
		defer func() {
			if err != nil {
				removeDirs(made)
			}
		}()
	}
	unlock, err := lock(p.BinDir, p.ConfDir)
	if err != nil {
		return nil, err
	}
	defer unlock()
	return p.replace([]*file{plugin, conf}, force)
}

// replace puts files in place, in their order: all of them or none.
func (p Place) replace(files []*file, force bool) (changes []Change, err error) {
	var pending []*file
	for _, f := range files {
		same, err := f.look(force)
		if err != nil {
			return nil, err
		}
		changes = append(changes, change(f, same))
		if !same {
			pending = append(pending, f)
		}
	}
	for _, f := range files {
		if err := f.discard(); err != nil { // what a killed process left
			return nil, err
		}
	}
	var undo []func() error
	defer func() {
		if err != nil {
			for _, step := range slices.Backward(undo) {
				err = errors.Join(err, step())
			}
		}
	}()
	for _, f := range pending {
		undo = append(undo, f.discard)
		if err := p.step("stage "+f.path, f.stage); err != nil {
			return nil, err
		}
	}
	for _, f := range pending {
		do := func() error {
			if err := f.commit(); err != nil {
				return err
			}
			undo = append(undo, f.revert)
			return nil
		}
		if err := p.step("commit "+f.path, do); err != nil {
			return nil, err
		}
	}
	for _, f := range pending {
		_ = f.discard() // they are installed; what is left aside harms nobody, and goes the next time
	}
	return changes, nil
}

func change(f *file, same bool) Change {
	c := Change{What: whatPlugin, Path: f.path, Done: "written"}
	if filepath.Ext(f.path) == ".conflist" {
		c.What = whatConflist
	}
	switch {
	case same:
		c.Done = "unchanged"
	case f.had:
		c.Done = "replaced"
	}
	return c
}

// step does a step, and lets tests have a word.
func (p Place) step(name string, do func() error) error {
	if err := do(); err != nil {
		return err
	}
	if p.after != nil {
		return p.after(name)
	}
	return nil
}

// Uninstall removes the configuration and then the plugin. What is not there is no
// error; what is not ours is one, a [ForeignError], and then nothing is removed. A
// plugin that is the very file in keep, and no copy of it, is left.
func (p Place) Uninstall(keep string) ([]Change, error) {
	dirs := slices.DeleteFunc([]string{p.BinDir, p.ConfDir}, func(dir string) bool {
		_, err := os.Stat(dir)
		return errors.Is(err, fs.ErrNotExist)
	})
	unlock, err := lock(dirs...)
	if err != nil {
		return nil, err
	}
	defer unlock()
	plugin, conf := p.plugin(), p.conflist()
	for _, f := range []*file{conf, plugin} {
		if _, err := f.look(false); err != nil {
			return nil, err
		}
	}
	var changes []Change
	for _, f := range []*file{conf, plugin} {
		c := change(f, false)
		if f == plugin && sameFile(f.path, keep) {
			c.Done = "left: it is the program that copies are made of"
			changes = append(changes, c)
			continue
		}
		absent, err := f.remove()
		if err != nil {
			return changes, err
		}
		if c.Done = "removed"; absent {
			c.Done = "absent"
		}
		changes = append(changes, c)
		if err := f.discard(); err != nil {
			return changes, err
		}
	}
	return changes, nil
}

func sameFile(a, b string) bool {
	one, err := os.Stat(a)
	if err != nil {
		return false
	}
	two, err := os.Stat(b)
	return err == nil && os.SameFile(one, two)
}

// Before lists the configurations in the place that runtimes take instead, since
// their names come first.
func (p Place) Before() ([]string, error) {
	entries, err := os.ReadDir(p.ConfDir)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, entry := range entries { // sorted
		isConf := slices.Contains([]string{".conf", ".conflist", ".json"}, filepath.Ext(entry.Name()))
		if isConf && !entry.IsDir() && entry.Name() < p.ConfName {
			out = append(out, entry.Name())
		}
	}
	return out, nil
}
