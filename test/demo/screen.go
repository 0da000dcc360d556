// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"unicode/utf8"

	"github.com/fatih/color"
	"golang.org/x/sys/unix"
)

// width is how many columns the demo's output takes at the most.
const width = 80

// The colours. Package color leaves them out where NO_COLOR is set and where
// standard output is no terminal.
var (
	bold   = color.New(color.Bold)
	faint  = color.New(color.Faint)
	title  = color.New(color.FgCyan, color.Bold)
	filled = color.New(color.FgCyan)
	comes  = color.New(color.FgGreen)
	goes   = color.New(color.FgYellow)
	good   = color.New(color.FgGreen, color.Bold)
	bad    = color.New(color.FgRed, color.Bold)
)

// screen is where the demo writes.
type screen struct {
	out      io.Writer
	terminal bool // lines can be overwritten
	liveOn   bool // there is such a line
	sections int
	silent   func() bool // says that nothing is to be written any more; may be nil
	held     int         // claims that held
	broken   []string    // claims that did not
}

func newScreen(out io.Writer, terminal bool) *screen { return &screen{out: out, terminal: terminal} }

// isTerminal tells whether a file is a terminal that knows escape sequences.
func isTerminal(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil && os.Getenv("TERM") != "dumb"
}

// line prints a line that consists of the parts.
func (s *screen) line(parts ...string) {
	s.endLive()
	if s.silent != nil && s.silent() {
		return
	}
	fmt.Fprintln(s.out, strings.TrimRight(strings.Join(parts, ""), " "))
}

// section begins a part of the demo.
func (s *screen) section(name string) {
	s.sections++
	head := fmt.Sprintf(" %d  %s ", s.sections, name)
	s.line()
	s.line(title.Sprint("──" + head + strings.Repeat("─", max(0, width-2-utf8.RuneCountInString(head)))))
}

// say prints a paragraph, whose lines are broken where they are too long.
func (s *screen) say(format string, args ...any) {
	for _, l := range wrap(fmt.Sprintf(format, args...), width-2) {
		s.line("  ", l)
	}
}

// command prints what could be typed instead of what the demo does.
func (s *screen) command(format string, args ...any) {
	s.line("  ", faint.Sprint("$ "), bold.Sprintf(format, args...))
}

// claim prints something that the demo has checked, and remembers it if it is
// not so.
func (s *screen) claim(holds bool, format string, args ...any) {
	if s.silent != nil && s.silent() {
		return // what was cut short tells nothing
	}
	text, mark := fmt.Sprintf(format, args...), "✓"
	style := good
	if holds {
		s.held++
	} else {
		s.broken = append(s.broken, text)
		mark, style = "✗ NOT SO:", bad
	}
	columns := width - 3 - utf8.RuneCountInString(mark)
	mark = style.Sprint(mark)
	for i, l := range wrap(text, columns) {
		if i > 0 {
			mark = " "
		}
		s.line("  ", mark, " ", l)
	}
}

// live overwrites the line at the bottom; nothing where that cannot be done.
func (s *screen) live(text string) {
	if !s.terminal || s.silent != nil && s.silent() {
		return
	}
	s.liveOn = true
	fmt.Fprint(s.out, "\r\033[K  ", faint.Sprint(text))
}

// endLive takes the live line away.
func (s *screen) endLive() {
	if s.liveOn {
		s.liveOn = false
		fmt.Fprint(s.out, "\r\033[K")
	}
}

// wrap breaks text into lines of at most n characters.
func wrap(text string, n int) (lines []string) {
	current := ""
	for _, word := range strings.Fields(text) {
		if current != "" && utf8.RuneCountInString(current)+1+utf8.RuneCountInString(word) > n {
			lines = append(lines, current)
			current = ""
		}
		if current != "" {
			current += " "
		}
		current += word
	}
	return append(lines, current)
}
