"""Characters by line and column, to draw on."""


class Canvas:
    def __init__(self) -> None:
        self.lines: list[list[str]] = []

    def put(self, line: int, column: int, text: str) -> None:
        while len(self.lines) <= line:
            self.lines.append([])
        row = self.lines[line]
        row += " " * (column + len(text) - len(row))
        row[column : column + len(text)] = text

    def centre(self, line: int, column: int, text: str) -> None:
        self.put(line, max(0, column - len(text) // 2), text)

    def text(self) -> list[str]:
        return ["".join(row).rstrip() for row in self.lines]
