// SPDX-License-Identifier: Apache-2.0

package result

// Values of [Suite.Layout].
const (
	// LayoutMatrix has a line for each connection, with columns for the pod IP and for each kind of cluster IP.
	LayoutMatrix = "matrix"
	// LayoutList has a line for each row ID.
	LayoutList = "list"
)

// Parts of [Suite.Answer]. The first part of an answer is its headline.
const (
	AnswerFastest    = "fastest"    // names the best row and the rows that are tied with it
	AnswerReference  = "reference"  // compares all rows with the reference, which does not compete
	AnswerTally      = "tally"      // counts the results of the statements that [Statement.Tally] marks
	AnswerStatements = "statements" // gives the result of each statement
	// AnswerGrid gives a table with a line for each group and a column for each series.
	AnswerGrid = "grid"
)

// Colors of a [Series]. A page chooses the shades.
const (
	ColorGray   = "gray"
	ColorSlate  = "slate"
	ColorOrange = "orange"
	ColorPurple = "purple"
	ColorBlue   = "blue"
	ColorTeal   = "teal"
	ColorOlive  = "olive"
)

// Suite says how to present the rows of a suite. It names rows by ID; a row that the file does not hold is left out.
type Suite struct {
	Name     string `json:"name"`     // the suite's name, as in [Row.Suite]
	Question string `json:"question"` // the question that the suite answers
	Layout   string `json:"layout"`   // [LayoutMatrix] or [LayoutList]
	// Answer lists the parts of the answer to the question in their order. Readers ignore the names of others, which
	// files of earlier versions have.
	Answer []string `json:"answer"`
	// Reference is the ID of the row that all others are compared with; empty for no comparison.
	Reference string `json:"reference,omitempty"`
	// TransactionTime compares rows with the reference in time per transaction rather than in transactions per second.
	TransactionTime bool `json:"transaction_time,omitempty"`
	// PacketPath lists the devices and netfilter hooks that packets of each row pass.
	PacketPath bool    `json:"packet_path,omitempty"`
	Variants   bool    `json:"variants,omitempty"` // shows the variant of each row
	Groups     []Group `json:"groups,omitempty"`   // gathers rows under captions in charts
	// Series gives rows a color and a name in legends. Target, via and datapath give them to rows without a series.
	Series []Series `json:"series,omitempty"`
	// [AnswerTally] compares Subject and Object, such as "Open vSwitch" and "Linux bridge".
	Subject    string      `json:"subject,omitempty"`
	Object     string      `json:"object,omitempty"`
	Statements []Statement `json:"statements,omitempty"` // comparisons that the answer tells in words
	Notes      []string    `json:"notes,omitempty"`      // remarks on the suite's rows
}

// Group is a caption and the IDs of the rows below it.
type Group struct {
	Caption string   `json:"caption"`
	Rows    []string `json:"rows"`
}

// Series is a kind of rows that a chart shows in one color.
type Series struct {
	Name  string   `json:"name"`
	Color string   `json:"color"`
	Rows  []string `json:"rows"`
}

// Statement is a caption and the pairs of rows whose difference follows it.
type Statement struct {
	Caption string `json:"caption"`         // begins the sentence, without a colon
	Pairs   []Pair `json:"pairs"`           // the rows to compare
	Tally   bool   `json:"tally,omitempty"` // makes the pairs count in [AnswerTally]
	// Subject and Object, such as "on two CPUs" and "on one", sum up the pairs in a sentence: throughput on two CPUs
	// falls to 9 to 22 % of that on one. Empty for none.
	Subject string `json:"subject,omitempty"`
	Object  string `json:"object,omitempty"`
}

// Pair is two rows to compare, by ID. Label names the pair, and may be empty where it is the only one.
type Pair struct {
	Numerator   string `json:"numerator"`
	Denominator string `json:"denominator"`
	Label       string `json:"label,omitempty"`
}
