// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

var manDir = flag.String("man", "", "the directory in which TestManPages leaves the pages")

// TestManPages writes a manual page for each command. Releases take the pages from here (deploy/release),
// so that the product needs no code for them.
func TestManPages(t *testing.T) {
	dir := *manDir
	if dir == "" {
		dir = t.TempDir()
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	date := time.Unix(0, 0)
	if epoch, err := strconv.ParseInt(os.Getenv("SOURCE_DATE_EPOCH"), 10, 64); err == nil {
		date = time.Unix(epoch, 0)
	}
	root := newRoot()
	root.DisableAutoGenTag = true
	header := &doc.GenManHeader{Section: "1", Date: &date, Source: "slipstream", Manual: "Slipstream"}
	if err := doc.GenManTree(root, header, dir); err != nil {
		t.Fatal(err)
	}
	var check func(c *cobra.Command, name string)
	check = func(c *cobra.Command, name string) {
		page, err := os.ReadFile(filepath.Join(dir, name+".1"))
		if err != nil {
			t.Error(err)
		} else if !bytes.Contains(page, []byte(".SH SYNOPSIS")) || !bytes.Contains(page, []byte(`.TH "SLIPSTREAM`)) {
			t.Errorf("%s.1 is no manual page: %.200s", name, page)
		}
		for _, sub := range c.Commands() {
			if sub.IsAvailableCommand() && !sub.IsAdditionalHelpTopicCommand() {
				check(sub, name+"-"+sub.Name())
			}
		}
	}
	check(root, "slipstream")
}
